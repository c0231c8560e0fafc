#!lua flags=allow-oom
-- Ask whether an open call may be forwarded once more, and under which revision of the run. While the run is paused it is
-- not in flight: it is taken off and noted as held, to be opened again after the pause.
-- KEYS  rollout  run  replicas  control
-- ARGV  call  replica_ttl
-- ->    {"open", revision} | {"paused", retry_after, reason} | {"lost"}
--#include now
--#include inflight
local call = ARGV[1]
local state, hidden, open, held =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'hidden', 'call:' .. call, 'held:' .. call))
if hidden or (state ~= 'queuing' and state ~= 'running') then return {'lost'} end
local paused, retry_after, reason, revision =
  unpack(redis.call('HMGET', KEYS[2], 'paused', 'retry_after', 'reason', 'revision'))
if not open then
  -- Whoever asks again because the answer was lost is told the same, even if the pause is over by now.
  return held and {'paused', retry_after, reason} or {'lost'}
end
if not paused then return {'open', tonumber(revision or '0')} end
redis.call('HDEL', KEYS[1], 'call:' .. call)
redis.call('HSET', KEYS[1], 'held:' .. call, open)
landed(KEYS[2], string.match(open, '^(%S+)'))
announce_if_drained(KEYS[2], KEYS[3], KEYS[4], now(), ARGV[2])
return {'paused', retry_after, reason}
