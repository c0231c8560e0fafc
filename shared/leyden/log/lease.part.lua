-- Whether the trainer of an epoch still holds the run's lease; "" is somebody who needs none.
local function holds_lease(settings, epoch)
  return epoch == '' or redis.call('HGET', settings, 'lease_epoch') == epoch
end
