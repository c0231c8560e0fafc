#!lua flags=allow-oom
-- Hold back new calls, or let them go again. From this script's end on no replica opens a call while paused.
-- KEYS  run  replicas  control
-- ARGV  "pause" | "resume" | "look"  replica_ttl  retry_after  reason
-- ->    {paused, retry_after, reason, inflight} | {} if the run has not begun
--#include now
--#include inflight
if redis.call('HEXISTS', KEYS[1], 'begun') == 0 then return {} end
if ARGV[1] == 'pause' then
  redis.call('HSET', KEYS[1], 'paused', 1, 'retry_after', ARGV[3], 'reason', ARGV[4])
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'paused')
elseif ARGV[1] == 'resume' then
  redis.call('HDEL', KEYS[1], 'paused', 'reason')
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'resumed')
end
local paused, retry_after, reason = unpack(redis.call('HMGET', KEYS[1], 'paused', 'retry_after', 'reason'))
return {paused or '', retry_after or '5', reason or '', inflight(KEYS[1], KEYS[2], now(), ARGV[2])}
