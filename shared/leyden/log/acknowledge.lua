#!lua flags=allow-oom
-- Take note that a reader is done with a completion, and free the rollout if it was the last to be.
-- KEYS  rollout  events  completions  run  rollouts:succeeded  :failed  freed
-- ARGV  id  N  reader ("" only frees what all readers have acknowledged)
--       epoch ("" unless a trainer asks)
-- ->    {"freed"} | {"kept"} | {"gone"} | {"lost"}
--#include now
--#include free
--#include lease
local id, n, reader = ARGV[1], ARGV[2], ARGV[3]
if not holds_lease(KEYS[4], ARGV[4]) then return {'lost'} end
if reader ~= '' then redis.call('XACK', KEYS[3], reader, n .. '-0') end
if redis.call('HGET', KEYS[1], 'ordinal') ~= n then return {'gone'} end
local first = reader ~= '' and redis.call('HSETNX', KEYS[1], 'acked:' .. reader, 1) == 1
if free(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], id) then return {'freed'} end
if first then redis.call('XADD', KEYS[2], '*', 'kind', 'acknowledged', 'at', now(), 'reader', reader) end
return {'kept'}
