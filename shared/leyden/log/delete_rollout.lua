#!lua flags=allow-oom
-- Hide a rollout at once, and free its keys if no reader still needs them. One that had not ended is published as
-- failed if the run has readers, so that none waits for it for ever.
-- KEYS  rollout  events  queue  completions  run  control  rollouts:queuing  :running  :succeeded  :failed
-- ARGV  id
-- ->    {"freed", nonce} | {"hidden"} | {"missing"}
--#include now
--#include lose_calls
--#include free
local id = ARGV[1]
local state, ordinal, entry, hidden, nonce, is_train, data_id =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'ordinal', 'entry', 'hidden', 'nonce', 'is_train', 'data_id'))
if not state or hidden then return {'missing'} end

local at = now()
lose_calls(KEYS[1], KEYS[2], KEYS[5], '', at)
redis.call('XADD', KEYS[2], '*', 'kind', 'deleted', 'at', at)
redis.call('HSET', KEYS[1], 'hidden', 1, 'updated_at', at)
for i = 7, 10 do redis.call('ZREM', KEYS[i], id) end
if entry then
  redis.call('XACK', KEYS[3], 'controllers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('HDEL', KEYS[1], 'entry')
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', 10000, '*', 'kind', 'cancelled', 'id', id)
end
if not ordinal and (redis.call('HGET', KEYS[5], 'readers') or '') ~= '' then
  local n = redis.call('HINCRBY', KEYS[5], 'completed', 1)
  redis.call('HSET', KEYS[1], 'state', 'failed', 'ordinal', n, 'error', 'deleted')
  redis.call('XADD', KEYS[4], n .. '-0', 'id', id, 'state', 'failed', 'is_train', is_train, 'data_id', data_id)
end
if free(KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[9], KEYS[10], id) then return {'freed', nonce} end
return {'hidden'}
