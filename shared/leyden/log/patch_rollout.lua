#!lua flags=allow-oom
-- Change a rollout's status without ending it, on behalf of a foreign controller or an operator. Leaving `queuing`
-- takes the rollout off the queue. A patch that is sent again under the same token changes nothing.
-- KEYS  rollout  events  queue  run  rollouts:queuing  :running
-- ARGV  id  token  state ("" | "running")  then field, value, ... of  attempt | job | error
-- ->    {"patched"} | {"refused", state} | {"missing"}
--#include now
--#include lose_calls
local id, token, wanted = ARGV[1], ARGV[2], ARGV[3]
local state, entry, last, hidden, created =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'entry', 'patch', 'hidden', 'created_at'))
if not state or hidden then return {'missing'} end
if last == token then return {'patched'} end
if wanted ~= '' and state ~= 'queuing' then return {'refused', state} end

local at = now()
for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  if ARGV[i] == 'attempt' then
    redis.call('HSET', KEYS[1], 'fence', ARGV[i + 1])
    lose_calls(KEYS[1], KEYS[2], KEYS[4], ARGV[i + 1], at)
  end
end
redis.call('XADD', KEYS[2], '*', 'kind', 'patched', 'at', at, 'state', wanted, unpack(ARGV, 4))
redis.call('HSET', KEYS[1], 'patch', token, 'updated_at', at)
redis.call('HINCRBY', KEYS[1], 'version', 1)
if wanted == 'running' then
  redis.call('HSET', KEYS[1], 'state', 'running')
  redis.call('ZREM', KEYS[5], id)
  redis.call('ZADD', KEYS[6], created, id)
  redis.call('XACK', KEYS[3], 'controllers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('HDEL', KEYS[1], 'entry')
end
return {'patched'}
