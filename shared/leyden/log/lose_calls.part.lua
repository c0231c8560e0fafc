-- Mark open calls lost: those of every attempt but `kept` ("" keeps none). They are no longer in flight. Held ones, of
-- which nothing was sampled, are forgotten.
local function lose_calls(rollout, events, run, replicas, control, kept, at, ttl)
  local fields, lost = redis.call('HGETALL', rollout), false
  for i = 1, #fields, 2 do
    local kind, call = string.match(fields[i], '^(%l+):(.+)$')
    if kind == 'call' or kind == 'held' then
      local replica, attempt = string.match(fields[i + 1], '^(%S+) ?(.*)$')
      if attempt ~= kept then
        redis.call('HDEL', rollout, fields[i])
        redis.call('HINCRBY', rollout, 'open:' .. attempt, -1)
        if kind == 'call' then
          redis.call('XADD', events, '*', 'kind', 'lost', 'attempt', attempt, 'call', call, 'at', at)
          landed(run, replica)
          lost = true
        end
      end
    end
  end
  if lost then announce_if_drained(run, replicas, control, at, ttl) end
end
