#!lua flags=allow-oom
-- Append what a call gave, once, and note that it is no longer in flight. One that was lost meanwhile is appended as
-- late. Without a payload the call leaves no event. A freed rollout is not created again.
-- KEYS  rollout  events  run  replicas  control
-- ARGV  attempt  call  event_type  payload ("" for none)  replica_ttl
-- ->    {"event" | "late", entry} | {"missing"}
--#include now
--#include inflight
local attempt, call = ARGV[1], ARGV[2]
local state, done, open, attempts =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'done:' .. call, 'call:' .. call, 'attempts'))
if not state then return {'missing'} end
if done then return {string.match(done, '^(%S+) (%S+)')} end

local kind, entry = open and 'event' or 'late', '0-0'
if ARGV[4] ~= '' then
  entry = redis.call('XADD', KEYS[2], '*', 'kind', kind, 'type', ARGV[3], 'attempt', attempt, 'call', call,
    'at', now(), 'data', ARGV[4])
  redis.call('HSET', KEYS[1], 'done:' .. call, kind .. ' ' .. entry)
  attempts = attempts or '\n'
  if kind == 'event' and not string.find(attempts, '\n' .. attempt .. '\n', 1, true) then
    redis.call('HSET', KEYS[1], 'attempts', attempts .. attempt .. '\n')
  end
end
if open then
  redis.call('HDEL', KEYS[1], 'call:' .. call)
  redis.call('HINCRBY', KEYS[3], 'inflight:' .. string.match(open, '^(%S+)'), -1)
  if redis.call('HEXISTS', KEYS[3], 'paused') == 1 and inflight(KEYS[3], KEYS[4], now(), ARGV[5]) == 0 then
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', 10000, '*', 'kind', 'drained')
  end
end
return {kind, entry}
