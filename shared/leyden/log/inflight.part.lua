-- Calls open under replicas whose heart has beaten within `ttl` seconds; the others' are no longer in flight.
local function inflight(settings, replicas, at, ttl)
  local total = 0
  for _, replica in ipairs(redis.call('ZRANGEBYSCORE', replicas, tonumber(at) - tonumber(ttl), '+inf')) do
    total = total + math.max(0, tonumber(redis.call('HGET', settings, 'inflight:' .. replica) or '0'))
  end
  return total
end
