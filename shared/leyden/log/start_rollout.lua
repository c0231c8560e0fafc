#!lua flags=allow-oom
-- Begin an attempt on behalf of the controller that holds the rollout's queue entry. The entry stays pending: it is
-- the controller's lease until the rollout ends. Earlier attempts are fenced and their open calls lost.
-- KEYS  rollout  events  queue  run  control  replicas  rollouts:queuing  :running
-- ARGV  id  attempt  entry  consumer  job_name ("" for none)  replica_ttl
-- ->    {"started"} | {"lost", owner} | {"finished", state} | {"missing"}
--#include now
--#include inflight
--#include lose_calls
--#include fence
--#include owner
local id, attempt, mine, me, job, ttl = unpack(ARGV)
local state, entry, current, hidden, created, fence =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'entry', 'attempt', 'hidden', 'created_at', 'fence'))
if not state or hidden then return {'missing'} end
if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
local holder = owner(KEYS[3], mine)
if entry ~= mine or holder ~= me then return {'lost', holder or ''} end
if state == 'running' and current == attempt then return {'started'} end

local at = now()
lose_calls(KEYS[1], KEYS[2], KEYS[4], KEYS[6], KEYS[5], attempt, at, ttl)
announce_fence(KEYS[5], id, fence, attempt)
redis.call('XADD', KEYS[2], '*', 'kind', 'started', 'attempt', attempt, 'at', at, 'by', me, 'job', job)
redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', attempt, 'fence', attempt, 'updated_at', at)
redis.call('HINCRBY', KEYS[1], 'version', 1)
if job ~= '' then redis.call('HSET', KEYS[1], 'job', job) end
if state == 'queuing' then
  redis.call('ZREM', KEYS[7], id)
  redis.call('ZADD', KEYS[8], created, id)
end
return {'started'}
