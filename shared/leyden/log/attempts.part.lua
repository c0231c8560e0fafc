-- Remember the attempts that have events, by first event, one a line.
local function note_attempt(rollout, attempts, attempt)
  attempts = attempts or '\n'
  if not string.find(attempts, '\n' .. attempt .. '\n', 1, true) then
    redis.call('HSET', rollout, 'attempts', attempts .. attempt .. '\n')
  end
end
