#!lua flags=allow-oom
-- Append an event that somebody reports, once per event id.
-- KEYS  rollout  events
-- ARGV  attempt  event_type  event_id  payload  nonce ("" for the admin, who is never fenced)
-- ->    {"appended", at} | {"fenced", attempt} | {"finished", state} | {"missing"}
--#include now
--#include attempts
local attempt, event_id = ARGV[1], ARGV[3]
local state, nonce, fence, hidden, attempts, known =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'nonce', 'fence', 'hidden', 'attempts', 'event:' .. event_id))
if not state or hidden then return {'missing'} end
if ARGV[5] ~= '' and ARGV[5] ~= nonce then return {'fenced', ''} end
if known then return {'appended', known} end
if ARGV[5] ~= '' then
  if fence and fence ~= attempt then return {'fenced', fence} end
  if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
end

local at = now()
redis.call('XADD', KEYS[2], '*', 'kind', 'event', 'type', ARGV[2], 'attempt', attempt, 'at', at, 'id', event_id,
  'data', ARGV[4])
redis.call('HSET', KEYS[1], 'event:' .. event_id, at)
note_attempt(KEYS[1], attempts, attempt)
return {'appended', at}
