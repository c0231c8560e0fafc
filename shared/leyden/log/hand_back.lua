#!lua flags=allow-oom
-- Put a rollout that its controller will not finish at the end of the queue, where any controller finds it.
-- KEYS  rollout  queue
-- ARGV  id  entry  consumer
-- ->    {"queued", entry} | {"lost", owner}
--#include owner
local holder = owner(KEYS[2], ARGV[2])
if holder ~= ARGV[3] or redis.call('HGET', KEYS[1], 'entry') ~= ARGV[2] then return {'lost', holder or ''} end
redis.call('XACK', KEYS[2], 'controllers', ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
local entry = redis.call('XADD', KEYS[2], '*', 'id', ARGV[1])
redis.call('HSET', KEYS[1], 'entry', entry)
return {'queued', entry}
