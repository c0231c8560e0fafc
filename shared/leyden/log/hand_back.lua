#!lua flags=allow-oom
-- Put a rollout that its controller will not finish at the end of the queue, where any controller finds it.
-- KEYS  rollout  events  queue
-- ARGV  id  entry  consumer
-- ->    {"queued", entry} | {"lost", owner}
--#include now
--#include owner
local id, mine, me = unpack(ARGV)
local entry, handed = unpack(redis.call('HMGET', KEYS[1], 'entry', 'handed'))
if entry and handed == mine then return {'queued', entry} end
local holder = owner(KEYS[3], mine)
if entry ~= mine or holder ~= me then return {'lost', holder or ''} end
redis.call('XACK', KEYS[3], 'controllers', mine)
redis.call('XDEL', KEYS[3], mine)
entry = redis.call('XADD', KEYS[3], '*', 'id', id)
redis.call('HSET', KEYS[1], 'entry', entry, 'handed', mine)
redis.call('XADD', KEYS[2], '*', 'kind', 'handed back', 'at', now(), 'by', me, 'from', mine, 'queued', entry)
return {'queued', entry}
