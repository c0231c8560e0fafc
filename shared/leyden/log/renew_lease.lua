#!lua flags=allow-oom
-- Show that a controller is alive: its pending entries are young again.
-- KEYS  queue
-- ARGV  consumer  entry...
-- ->    the entries that are no longer the controller's
--#include owner
local lost = {}
for i = 2, #ARGV do
  if owner(KEYS[1], ARGV[i]) == ARGV[1] then
    redis.call('XCLAIM', KEYS[1], 'controllers', ARGV[1], 0, ARGV[i], 'JUSTID')
  else
    table.insert(lost, ARGV[i])
  end
end
return lost
