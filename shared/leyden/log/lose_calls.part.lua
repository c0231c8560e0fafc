-- Mark open calls lost: those of every attempt but `kept` ("" keeps none). Their replicas no longer have them in flight.
local function lose_calls(rollout, events, settings, kept, at)
  local fields = redis.call('HGETALL', rollout)
  for i = 1, #fields, 2 do
    local call = string.match(fields[i], '^call:(.+)$')
    if call then
      local replica, attempt = string.match(fields[i + 1], '^(%S+) (%S+)')
      if attempt ~= kept then
        redis.call('HDEL', rollout, fields[i])
        redis.call('HINCRBY', settings, 'inflight:' .. replica, -1)
        redis.call('XADD', events, '*', 'kind', 'lost', 'attempt', attempt, 'call', call, 'at', at)
      end
    end
  end
end
