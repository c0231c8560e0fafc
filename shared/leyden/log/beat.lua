#!lua flags=allow-oom
-- Show that a gateway replica is alive, and forget those that have not been for long, with what they had in flight.
-- KEYS  replicas  run
-- ARGV  replica  forget_after_seconds
-- ->    how many replicas are remembered
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'GT', time[1] .. '.' .. string.format('%06d', time[2]), ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', time[1] - ARGV[2])) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], 'inflight:' .. gone)
end
return redis.call('ZCARD', KEYS[1])
