#!lua flags=allow-oom
-- Begin a run, once: its consumer groups read from the first entry on. Beginning it again brings new rules and adds
-- readers; also when memory is full, since only a run that goes on can free any.
-- KEYS  run  queue  completions  control
-- ARGV  rules (JSON)  reader...
-- ->    1 if the run is new, else 0
--#include rules
local function group(stream, name)
  local made = redis.pcall('XGROUP', 'CREATE', stream, name, '0', 'MKSTREAM')
  if type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP') then return error(made.err) end
end

group(KEYS[2], 'controllers')
local readers = redis.call('HGET', KEYS[1], 'readers') or ''
for i = 2, #ARGV do
  group(KEYS[3], ARGV[i])
  if not string.find(' ' .. readers .. ' ', ' ' .. ARGV[i] .. ' ', 1, true) then
    readers = readers == '' and ARGV[i] or readers .. ' ' .. ARGV[i]
  end
end
redis.call('HSET', KEYS[1], 'readers', readers)
redis.call('HDEL', KEYS[1], 'ended')
if redis.call('HGET', KEYS[1], 'rules') ~= ARGV[1] then
  put_rules(KEYS[1], ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'kind', 'settings')
end
return redis.call('HSETNX', KEYS[1], 'begun', redis.call('TIME')[1])
