#!lua flags=allow-oom
-- Note that a freed rollout's id was released. The pair of id and nonce is remembered for an hour, so that whoever
-- claimed the id before and was held up does not create a rollout under the nonce of one that is gone.
-- KEYS  freed
-- ARGV  id  nonce
-- ->    1 | 0 if the rollout has not been freed
local pair, seconds = ARGV[1] .. ' ' .. ARGV[2], tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(0', seconds - 3600)
if not redis.call('ZSCORE', KEYS[1], pair) then return 0 end
redis.call('ZADD', KEYS[1], 'XX', seconds, pair)
return 1
