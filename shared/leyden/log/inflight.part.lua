-- Calls open under replicas whose heart has beaten within `ttl` seconds; the others' are no longer in flight.
local function inflight(run, replicas, at, ttl)
  local total = 0
  for _, replica in ipairs(redis.call('ZRANGEBYSCORE', replicas, tonumber(at) - tonumber(ttl), '+inf')) do
    total = total + math.max(0, tonumber(redis.call('HGET', run, 'inflight:' .. replica) or '0'))
  end
  return total
end

-- One call fewer is open under a replica; one that has been forgotten has no count any more.
local function landed(run, replica)
  local field = 'inflight:' .. replica
  if redis.call('HEXISTS', run, field) == 1 then redis.call('HINCRBY', run, field, -1) end
end

-- Wake those who wait for the last call of a paused run.
local function announce_if_drained(run, replicas, control, at, ttl)
  if redis.call('HEXISTS', run, 'paused') == 1 and inflight(run, replicas, at, ttl) == 0 then
    redis.call('XADD', control, 'MAXLEN', '~', 10000, '*', 'kind', 'drained')
  end
end
