#!lua
-- Begin a run, once: its consumer groups read from the first entry on. Beginning it again brings new rules.
-- KEYS  run  queue  completions
-- ARGV  rules (JSON)  reader...
-- ->    1 if the run is new, else 0
local function group(stream, name)
  local made = redis.pcall('XGROUP', 'CREATE', stream, name, '0', 'MKSTREAM')
  if type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP') then return error(made.err) end
end

group(KEYS[2], 'controllers')
for i = 2, #ARGV do group(KEYS[3], ARGV[i]) end
redis.call('HSET', KEYS[1], 'readers', table.concat(ARGV, ' ', 2))
redis.call('HDEL', KEYS[1], 'ended')
if redis.call('HGET', KEYS[1], 'rules') ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'rules', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
end
return redis.call('HSETNX', KEYS[1], 'begun', redis.call('TIME')[1])
