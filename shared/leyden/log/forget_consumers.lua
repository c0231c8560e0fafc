#!lua flags=allow-oom
-- Forget controllers that hold no entry and have not taken any for long: they were killed, or have nothing to do.
-- KEYS  queue
-- ARGV  idle_ms
-- ->    how many were forgotten
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], 'controllers')
if consumers.err then return 0 end
local forgotten = 0
for _, fields in ipairs(consumers) do
  local consumer = {}
  for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
  if consumer.pending == 0 and consumer.idle >= tonumber(ARGV[1]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'controllers', consumer.name)
    forgotten = forgotten + 1
  end
end
return forgotten
