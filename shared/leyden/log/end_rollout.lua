#!lua flags=allow-oom
-- End a rollout, once, and publish its completion. Its open calls are lost, its queue entry goes.
-- KEYS  rollout  events  queue  completions  run  control  replicas
--       rollouts:queuing  :running  :succeeded  :failed
-- ARGV  id  state  error ("" for none)  entry  consumer (both "" unless its controller ends it)
--       token ("" unless this is a patch)  replica_ttl  then field, value, ... of  attempt | job
-- ->    {"ended", N} | {"already", state, N} | {"refused", state} | {"lost", owner} | {"missing"}
--#include now
--#include inflight
--#include lose_calls
--#include owner
local id, state, error_message, mine, me, token = unpack(ARGV)
local was, ordinal, entry, created, hidden, seen, is_train, data_id = unpack(redis.call('HMGET', KEYS[1],
  'state', 'ordinal', 'entry', 'created_at', 'hidden', 'patch:' .. token, 'is_train', 'data_id'))
if not was or hidden then return {'missing'} end
if ordinal then
  if token ~= '' and not seen then return {'refused', was} end
  return {'already', was, tonumber(ordinal)}
end
if token ~= '' and was == 'queuing' and state == 'succeeded' then return {'refused', was} end
if mine ~= '' then
  local holder = owner(KEYS[3], mine)
  if entry ~= mine or holder ~= me then return {'lost', holder or ''} end
end

local at = now()
-- Entry ids are the ordinals themselves: dense, in completion order, never reused.
local n = redis.call('HINCRBY', KEYS[5], 'completed', 1)
lose_calls(KEYS[1], KEYS[2], KEYS[5], KEYS[7], KEYS[6], '', at, ARGV[7])
redis.call('XADD', KEYS[2], '*', 'kind', 'ended', 'at', at, 'state', state, 'error', error_message, 'ordinal', n,
  'token', token, unpack(ARGV, 8))
redis.call('HSET', KEYS[1], 'state', state, 'ordinal', n, 'updated_at', at)
if token ~= '' then redis.call('HSET', KEYS[1], 'patch:' .. token, 1) end
if error_message ~= '' then redis.call('HSET', KEYS[1], 'error', error_message) end
for i = 8, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('ZREM', was == 'queuing' and KEYS[8] or KEYS[9], id)
redis.call('ZADD', state == 'succeeded' and KEYS[10] or KEYS[11], created, id)
if entry then
  redis.call('XACK', KEYS[3], 'controllers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('HDEL', KEYS[1], 'entry')
end
-- Somebody else ended it: whoever runs its agent, or holds its calls, must stop.
if mine == '' then redis.call('XADD', KEYS[6], 'MAXLEN', '~', 10000, '*', 'kind', 'cancelled', 'id', id) end
redis.call('XADD', KEYS[4], n .. '-0', 'id', id, 'state', state, 'is_train', is_train, 'data_id', data_id)
return {'ended', n}
