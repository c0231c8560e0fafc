#!lua flags=allow-oom
-- Begin an attempt on behalf of the controller that holds the rollout's queue entry. The entry stays pending: it is
-- the controller's lease until the rollout ends. Earlier attempts are fenced and their open calls lost.
-- KEYS  rollout  events  queue  run  rollouts:queuing  :running
-- ARGV  id  attempt  entry  consumer  job_name ("" for none)
-- ->    {"started"} | {"lost", owner} | {"finished", state} | {"missing"}
--#include now
--#include lose_calls
--#include owner
local id, attempt = ARGV[1], ARGV[2]
local state, entry, current, hidden, created =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'entry', 'attempt', 'hidden', 'created_at'))
if not state or hidden then return {'missing'} end
if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
local holder = owner(KEYS[3], ARGV[3])
if entry ~= ARGV[3] or holder ~= ARGV[4] then return {'lost', holder or ''} end
if state == 'running' and current == attempt then return {'started'} end

local at = now()
lose_calls(KEYS[1], KEYS[2], KEYS[4], attempt, at)
redis.call('XADD', KEYS[2], '*', 'kind', 'started', 'attempt', attempt, 'at', at, 'by', ARGV[4])
redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', attempt, 'fence', attempt, 'updated_at', at)
redis.call('HINCRBY', KEYS[1], 'version', 1)
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'job', ARGV[5]) end
if state == 'queuing' then
  redis.call('ZREM', KEYS[5], id)
  redis.call('ZADD', KEYS[6], created, id)
end
return {'started'}
