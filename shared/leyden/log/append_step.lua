#!lua flags=allow-oom
-- Append what the trainer decided or did, once per step id, if it still holds the lease. Also when memory is full: what
-- a step has used is freed only after it.
-- KEYS  steps  steps:ids  run
-- ARGV  kind  step_id  epoch  data
-- ->    {"appended", entry} | {"lost", holder}
local epoch, holder = unpack(redis.call('HMGET', KEYS[3], 'lease_epoch', 'lease_holder'))
if epoch ~= ARGV[3] then return {'lost', holder or ''} end
local known = redis.call('HGET', KEYS[2], ARGV[2])
if known then return {'appended', known} end
local entry = redis.call('XADD', KEYS[1], '*', 'kind', ARGV[1], 'step_id', ARGV[2], 'epoch', epoch, 'data', ARGV[4])
redis.call('HSET', KEYS[2], ARGV[2], entry)
return {'appended', entry}
