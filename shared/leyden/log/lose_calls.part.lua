-- Mark open calls lost: those of every attempt but `kept` ("" keeps none). They are no longer in flight.
local function lose_calls(rollout, events, run, replicas, control, kept, at, ttl)
  local fields, lost = redis.call('HGETALL', rollout), false
  for i = 1, #fields, 2 do
    local call = string.match(fields[i], '^call:(.+)$')
    if call then
      local replica, attempt = string.match(fields[i + 1], '^(%S+) (.*)$')
      if attempt ~= kept then
        redis.call('HDEL', rollout, fields[i])
        redis.call('XADD', events, '*', 'kind', 'lost', 'attempt', attempt, 'call', call, 'at', at)
        landed(run, replica)
        lost = true
      end
    end
  end
  if lost then announce_if_drained(run, replicas, control, at, ttl) end
end
