-- The attempt of an open or held call, by what the rollout knows of it.
local function attempt_of(call)
  return string.match(call, '^%S+ ?(.*)$')
end

-- What an attempt has used of a budget whose limit it has reached: {what, used, limit}; nil while there is room.
local function exceeded(what, used, limit)
  used, limit = tonumber(used or 0), tonumber(limit)
  return limit and used >= limit and {what, used, limit} or nil
end

-- Put on record that an attempt was refused a call, the first time.
local function note_refusal(rollout, events, attempt, spent)
  if redis.call('HSETNX', rollout, 'refused:' .. attempt, spent[1]) == 0 then return end
  redis.call('XADD', events, '*', 'kind', 'refused', 'attempt', attempt, 'at', now(), 'budget', spent[1],
    'used', spent[2], 'limit', spent[3])
end
