-- Whose a queue entry is: the consumer that holds it pending, or false.
local function owner(queue, entry)
  if not entry or entry == '' then return false end
  local held = redis.call('XPENDING', queue, 'controllers', entry, entry, 1)
  return held[1] and held[1][2]
end
