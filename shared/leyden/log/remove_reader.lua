#!lua flags=allow-oom
-- Wait no longer for a reader: what only it had not acknowledged may be freed.
-- KEYS  run  completions
-- ARGV  reader
-- ->    1 | 0 if the run has no such reader
local kept, found = {}, 0
for reader in string.gmatch(redis.call('HGET', KEYS[1], 'readers') or '', '%S+') do
  if reader == ARGV[1] then found = 1 else table.insert(kept, reader) end
end
if found == 0 then return 0 end
redis.call('HSET', KEYS[1], 'readers', table.concat(kept, ' '))
redis.call('XGROUP', 'DESTROY', KEYS[2], ARGV[1])
return 1
