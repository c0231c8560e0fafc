#!lua
-- Create a rollout and queue it, once, unless there is no room for new ones.
-- KEYS  rollout  events  queue  rollouts:queuing  run  freed  claims
-- ARGV  id  nonce  digest  is_train ("1" | "0")  data_id  payload  room ("1" | "0")
--       then field, value, ... of  max_calls_per_attempt | max_tokens_per_attempt
-- ->    {"created"} | {"exists", digest} | {"hidden"} | {"stale"} | {"no run"} | {"run ended"} | {"no room"}
--#include now
local id, nonce, digest, is_train, data_id = unpack(ARGV)
local stored, hidden = unpack(redis.call('HMGET', KEYS[1], 'digest', 'hidden'))
if hidden then return {'hidden'} end
if stored then
  redis.call('ZREM', KEYS[7], id)
  return {'exists', stored}
end
local begun, ended = unpack(redis.call('HMGET', KEYS[5], 'begun', 'ended'))
if not begun then return {'no run'} end
if ended then return {'run ended'} end
if ARGV[7] == '0' then return {'no room'} end
-- The nonce belongs to a rollout that was freed: its tokens must not come to life again.
if redis.call('ZSCORE', KEYS[6], id .. ' ' .. nonce) then return {'stale'} end

local at = now()
local entry = redis.call('XADD', KEYS[3], '*', 'id', id)
local limits = {unpack(ARGV, 8)}
redis.call('XADD', KEYS[2], '*', 'kind', 'created', 'at', at, 'nonce', nonce, 'digest', digest, 'is_train', is_train,
  'data_id', data_id, 'queued', entry, 'data', ARGV[6], unpack(limits))
redis.call('HSET', KEYS[1], 'nonce', nonce, 'digest', digest, 'is_train', is_train, 'data_id', data_id,
  'state', 'queuing', 'version', 1, 'created_at', at, 'updated_at', at, 'entry', entry, unpack(limits))
redis.call('ZADD', KEYS[4], at, id)
redis.call('ZREM', KEYS[7], id)
return {'created'}
