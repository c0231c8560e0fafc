#!lua flags=allow-oom
-- One trainer a run: acquire, renew or release its lease. Each acquisition has a higher epoch than all before.
-- KEYS  run
-- ARGV  "acquire" | "renew" | "release"  holder  ttl_ms  epoch ("" to acquire)
-- ->    {"held", epoch} | {"taken", holder, remaining_ms} | {"lost", holder} | {"no run"}
local verb, me, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local begun, holder, epoch, till =
  unpack(redis.call('HMGET', KEYS[1], 'begun', 'lease_holder', 'lease_epoch', 'lease_until'))
if not begun then return {'no run'} end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if verb == 'acquire' then
  local left = tonumber(till or '0') - now_ms
  if holder and holder ~= me and left > 0 then return {'taken', holder, left} end
  epoch = redis.call('HINCRBY', KEYS[1], 'lease_epoch', 1)
elseif holder ~= me or epoch ~= ARGV[4] then
  return {'lost', holder or ''}
end
if verb == 'release' then ttl = 0 end
redis.call('HSET', KEYS[1], 'lease_holder', me, 'lease_until', string.format('%d', now_ms + ttl))
return {'held', tonumber(epoch)}
