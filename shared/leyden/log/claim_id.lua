#!lua
-- Bind a rollout id to a run, once.
-- KEYS  index
-- ARGV  run  nonce
-- ->    {run, nonce} that the id is bound to
if redis.call('HSETNX', KEYS[1], 'run', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'nonce', ARGV[2])
end
return redis.call('HMGET', KEYS[1], 'run', 'nonce')
