#!lua flags=allow-oom
-- Change a rollout's status without ending it, on behalf of a foreign controller or an operator. Leaving `queuing`
-- takes the rollout off the queue. A patch that is sent again under the same token changes nothing.
-- KEYS  rollout  events  queue  run  control  replicas  rollouts:queuing  :running
-- ARGV  id  token  state ("" | "running")  replica_ttl  then field, value, ... of  attempt | job | error
-- ->    {"patched"} | {"refused", state} | {"missing"}
--#include now
--#include inflight
--#include lose_calls
--#include fence
local id, token, wanted, ttl = unpack(ARGV)
local state, entry, seen, hidden, created, fence =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'entry', 'patch:' .. token, 'hidden', 'created_at', 'fence'))
if not state or hidden then return {'missing'} end
if seen then return {'patched'} end
if wanted ~= '' and state ~= 'queuing' then return {'refused', state} end

local at = now()
for i = 5, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  if ARGV[i] == 'attempt' and ARGV[i + 1] ~= '' then
    redis.call('HSET', KEYS[1], 'fence', ARGV[i + 1])
    lose_calls(KEYS[1], KEYS[2], KEYS[4], KEYS[6], KEYS[5], ARGV[i + 1], at, ttl)
    announce_fence(KEYS[5], id, fence, ARGV[i + 1])
  end
end
redis.call('XADD', KEYS[2], '*', 'kind', 'patched', 'at', at, 'state', wanted, 'token', token, unpack(ARGV, 5))
redis.call('HSET', KEYS[1], 'patch:' .. token, 1, 'updated_at', at)
redis.call('HINCRBY', KEYS[1], 'version', 1)
if wanted == 'running' then
  redis.call('HSET', KEYS[1], 'state', 'running')
  redis.call('ZREM', KEYS[7], id)
  redis.call('ZADD', KEYS[8], created, id)
  redis.call('XACK', KEYS[3], 'controllers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('HDEL', KEYS[1], 'entry')
end
return {'patched'}
