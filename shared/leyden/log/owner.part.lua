-- Whose a queue entry is: the consumer that holds it pending, or false.
local function owner(queue, entry)
  if not entry or entry == '' then return false end
  -- A queue that is gone with all the log's data belongs to nobody.
  local held = redis.pcall('XPENDING', queue, 'controllers', entry, entry, 1)
  return not held.err and held[1] and held[1][2]
end
