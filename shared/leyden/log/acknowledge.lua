#!lua flags=allow-oom
-- Take note that a reader is done with a completion, and free the rollout if it was the last to be.
-- KEYS  rollout  events  completions  run  rollouts:succeeded  :failed
-- ARGV  id  N  reader
-- ->    {"freed", nonce} | {"kept"} | {"gone"}
--#include free
local id, n, reader = ARGV[1], ARGV[2], ARGV[3]
redis.call('XACK', KEYS[3], reader, n .. '-0')
local nonce, ordinal, hidden = unpack(redis.call('HMGET', KEYS[1], 'nonce', 'ordinal', 'hidden'))
if ordinal ~= n then return {'gone'} end
redis.call('HSET', KEYS[1], 'acked:' .. reader, 1)
if free(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], id) then return {'freed', nonce} end
return {'kept'}
