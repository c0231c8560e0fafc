#!lua flags=allow-oom
-- Ask whether an open call may be forwarded once more. While the run is paused it is not in flight: it is taken off,
-- to be opened again after the pause.
-- KEYS  rollout  run  replicas  control
-- ARGV  call  replica_ttl
-- ->    {"open"} | {"paused", retry_after, reason} | {"lost"}
--#include now
--#include inflight
local call = ARGV[1]
local open = redis.call('HGET', KEYS[1], 'call:' .. call)
if not open then return {'lost'} end
local paused, retry_after, reason = unpack(redis.call('HMGET', KEYS[2], 'paused', 'retry_after', 'reason'))
if not paused then return {'open'} end
redis.call('HDEL', KEYS[1], 'call:' .. call)
redis.call('HINCRBY', KEYS[2], 'inflight:' .. string.match(open, '^(%S+)'), -1)
if inflight(KEYS[2], KEYS[3], now(), ARGV[2]) == 0 then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'kind', 'drained')
end
return {'paused', retry_after, reason}
