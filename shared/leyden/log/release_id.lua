#!lua flags=allow-oom
-- Unbind a rollout id whose rollout was freed, unless it has been bound anew.
-- KEYS  index
-- ARGV  nonce
-- ->    1 | 0
if redis.call('HGET', KEYS[1], 'nonce') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
