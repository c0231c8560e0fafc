-- Tell everybody that an attempt has taken over from another, whose calls may be held somewhere.
local function announce_fence(control, id, before, attempt)
  if before and before ~= attempt then
    redis.call('XADD', control, 'MAXLEN', '~', 10000, '*', 'kind', 'fenced', 'id', id)
  end
end
