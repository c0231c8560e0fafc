#!lua flags=allow-oom
-- Append what a call gave, once, and note that it is no longer in flight. One that was lost meanwhile is appended as
-- late. Without a payload the call leaves no event. A freed rollout is not created again.
-- KEYS  rollout  events  run  replicas  control  models
-- ARGV  attempt  call  event_type  payload ("" for none)  replica_ttl  nonce ("" for whichever creation stands)
--       server ("" for none; the event says the weight version that it is registered with now)
--       tokens ("" if the call does not count in its attempt's budget)
--       then the calls that the payload goes on from: without them it could not be read
-- ->    {"event" | "late", entry} | {"missing"} | {"base missing", call}
--#include now
--#include attempts
--#include inflight
--#include budget
local attempt, call, server, tokens = ARGV[1], ARGV[2], ARGV[7], ARGV[8]
local state, nonce, done, open, attempts, held = unpack(redis.call('HMGET', KEYS[1],
  'state', 'nonce', 'done:' .. call, 'call:' .. call, 'attempts', 'held:' .. call))
if not state or (ARGV[6] ~= '' and ARGV[6] ~= nonce) then return {'missing'} end
if done then return {string.match(done, '^(%S+) (%S+)')} end
for i = 9, #ARGV do
  if redis.call('HEXISTS', KEYS[1], 'done:' .. ARGV[i]) == 0 then return {'base missing', ARGV[i]} end
end

local at, kind, entry = now(), open and 'event' or 'late', '0-0'
if ARGV[4] ~= '' then
  local fields = {'kind', kind, 'type', ARGV[3], 'attempt', attempt, 'call', call, 'at', at}
  if server ~= '' then
    table.insert(fields, 'version_at_end')
    table.insert(fields, redis.call('HGET', KEYS[6], server) or 'null')
  end
  if open and tokens ~= '' then
    table.insert(fields, 'tokens')
    table.insert(fields, tokens)
    redis.call('HINCRBY', KEYS[1], 'calls:' .. attempt, 1)
    redis.call('HINCRBY', KEYS[1], 'tokens:' .. attempt, tokens)
  end
  table.insert(fields, 'data')
  table.insert(fields, ARGV[4])
  entry = redis.call('XADD', KEYS[2], '*', unpack(fields))
  redis.call('HSET', KEYS[1], 'done:' .. call, kind .. ' ' .. entry)
  if kind == 'event' then note_attempt(KEYS[1], attempts, attempt) end
end
if open or held then redis.call('HINCRBY', KEYS[1], 'open:' .. attempt_of(open or held), -1) end
if held then redis.call('HDEL', KEYS[1], 'held:' .. call) end
if open then
  redis.call('HDEL', KEYS[1], 'call:' .. call)
  landed(KEYS[3], string.match(open, '^(%S+)'))
  announce_if_drained(KEYS[3], KEYS[4], KEYS[5], at, ARGV[5])
end
return {kind, entry}
