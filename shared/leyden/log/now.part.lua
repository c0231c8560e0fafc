-- Redis's own clock, in Unix seconds.
local function now()
  local time = redis.call('TIME')
  return string.format('%d.%06d', time[1], time[2])
end
