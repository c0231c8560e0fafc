#!lua flags=allow-oom
-- Hide a rollout at once, and free its keys if no reader still needs them. One that had not ended is published as
-- failed if the run has readers, so that none waits for it for ever.
-- KEYS  rollout  events  queue  completions  run  control  replicas  freed
--       rollouts:queuing  :running  :succeeded  :failed
-- ARGV  id  replica_ttl
-- ->    {"freed", nonce} | {"hidden"} | {"missing"}
--#include now
--#include inflight
--#include lose_calls
--#include free
local id = ARGV[1]
local state, ordinal, entry, hidden, nonce, is_train, data_id =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'ordinal', 'entry', 'hidden', 'nonce', 'is_train', 'data_id'))
if not state or hidden then return {'missing'} end

local at = now()
lose_calls(KEYS[1], KEYS[2], KEYS[5], KEYS[7], KEYS[6], '', at, ARGV[2])
redis.call('HSET', KEYS[1], 'hidden', 1, 'updated_at', at)
for i = 9, 12 do redis.call('ZREM', KEYS[i], id) end
if entry then
  redis.call('XACK', KEYS[3], 'controllers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('HDEL', KEYS[1], 'entry')
end
redis.call('XADD', KEYS[6], 'MAXLEN', '~', 10000, '*', 'kind', 'cancelled', 'id', id)
local published = ''
if not ordinal and (redis.call('HGET', KEYS[5], 'readers') or '') ~= '' then
  published = redis.call('HINCRBY', KEYS[5], 'completed', 1)
  redis.call('HSET', KEYS[1], 'state', 'failed', 'ordinal', published, 'error', 'deleted')
  redis.call('XADD', KEYS[4], published .. '-0', 'id', id, 'state', 'failed', 'is_train', is_train, 'data_id', data_id)
end
redis.call('XADD', KEYS[2], '*', 'kind', 'deleted', 'at', at, 'ordinal', published)
if free(KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[11], KEYS[12], KEYS[8], id) then return {'freed', nonce} end
return {'hidden'}
