#!lua flags=allow-oom
-- Hold back new calls, or let them go again. From this script's end on no replica opens a call while paused.
-- KEYS  run  replicas  control
-- ARGV  "pause" | "resume" | "look"  replica_ttl  retry_after  reason  epoch ("" unless a trainer asks)
-- ->    {"set", paused, retry_after, reason, inflight} | {"lost", holder} | {"no run"}
--#include now
--#include inflight
--#include lease
if redis.call('HEXISTS', KEYS[1], 'begun') == 0 then return {'no run'} end
if not holds_lease(KEYS[1], ARGV[5]) then return {'lost', redis.call('HGET', KEYS[1], 'lease_holder') or ''} end
if ARGV[1] == 'pause' then
  redis.call('HSET', KEYS[1], 'paused', 1, 'retry_after', ARGV[3], 'reason', ARGV[4])
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'paused')
elseif ARGV[1] == 'resume' then
  redis.call('HDEL', KEYS[1], 'paused', 'reason')
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'resumed')
end
local paused, retry_after, reason = unpack(redis.call('HMGET', KEYS[1], 'paused', 'retry_after', 'reason'))
return {'set', paused or '', retry_after or '5', reason or '', inflight(KEYS[1], KEYS[2], now(), ARGV[2])}
