#!lua flags=allow-oom
-- Append what a call gave, once, and note that it is no longer in flight. One that was lost meanwhile is appended as
-- late. Without a payload the call leaves no event. A freed rollout is not created again.
-- KEYS  rollout  events  run  replicas  control
-- ARGV  attempt  call  event_type  payload ("" for none)  replica_ttl  nonce ("" for whichever creation stands)
--       then the calls that the payload goes on from: without them it could not be read
-- ->    {"event" | "late", entry} | {"missing"} | {"base missing", call}
--#include now
--#include attempts
--#include inflight
local attempt, call = ARGV[1], ARGV[2]
local state, nonce, done, open, attempts =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'nonce', 'done:' .. call, 'call:' .. call, 'attempts'))
if not state or (ARGV[6] ~= '' and ARGV[6] ~= nonce) then return {'missing'} end
if done then return {string.match(done, '^(%S+) (%S+)')} end
for i = 7, #ARGV do
  if redis.call('HEXISTS', KEYS[1], 'done:' .. ARGV[i]) == 0 then return {'base missing', ARGV[i]} end
end

local at, kind, entry = now(), open and 'event' or 'late', '0-0'
if ARGV[4] ~= '' then
  entry = redis.call('XADD', KEYS[2], '*', 'kind', kind, 'type', ARGV[3], 'attempt', attempt, 'call', call,
    'at', at, 'data', ARGV[4])
  redis.call('HSET', KEYS[1], 'done:' .. call, kind .. ' ' .. entry)
  if kind == 'event' then note_attempt(KEYS[1], attempts, attempt) end
end
redis.call('HDEL', KEYS[1], 'held:' .. call)
if open then
  redis.call('HDEL', KEYS[1], 'call:' .. call)
  landed(KEYS[3], string.match(open, '^(%S+)'))
  announce_if_drained(KEYS[3], KEYS[4], KEYS[5], at, ARGV[5])
end
return {kind, entry}
