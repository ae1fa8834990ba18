-- The sliding windows of one subject: requests and compute units during the last second.
--
-- KEYS[1]  a list of admissions, oldest first: "moment:requests:units", moment in microseconds of the server's clock
-- KEYS[2]  a hash of sums over that list: r requests, u units, b moment at which its youngest entry began
-- ARGV     requests, units, requests per second, units per second (0 = no limit), units to give back, their stamp
--
-- Returns {0 admitted | 1 too many requests | 2 too many units, requests in the window, moment of the last admission,
-- now}. With no requests and no units it only reports. See windows.py for the rules; both follow the same ones.

local WINDOW, EXACT_ENTRIES, QUANTUM, KEEP_MILLISECONDS = 1000000, 1000, 1000, 1100

local events, sums = KEYS[1], KEYS[2]
local requests, units = tonumber(ARGV[1]), tonumber(ARGV[2])
local request_limit, unit_limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local give_back, stamp = tonumber(ARGV[5]), tonumber(ARGV[6])

local function pack(moment, r, u)
  return string.format('%.0f:%.0f:%.0f', moment, r, u)
end

local function unpack_event(event)
  local moment, r, u = string.match(event, '^(%d+):(%d+):(%d+)$')
  return tonumber(moment), tonumber(r), tonumber(u)
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local used_requests, used_units, bucket, changed = 0, 0, 0, false
local last = 0

local youngest = redis.call('LINDEX', events, -1)
if youngest then
  last = unpack_event(youngest)
  if now - last >= WINDOW then
    redis.call('DEL', events, sums)
    youngest = false
  end
end

if youngest then
  local held = redis.call('HMGET', sums, 'r', 'u', 'b')
  if held[1] then
    used_requests, used_units, bucket = tonumber(held[1]), tonumber(held[2]), tonumber(held[3])
  else
    -- The sums were evicted; the list knows them.
    for _, event in ipairs(redis.call('LRANGE', events, 0, -1)) do
      local _, r, u = unpack_event(event)
      used_requests, used_units = used_requests + r, used_units + u
    end
    changed = true
  end
  if last > now then
    -- The server's clock was set back. What was admitted was admitted before now, so now is the strictest true moment.
    redis.call('DEL', events)
    redis.call('RPUSH', events, pack(now, used_requests, used_units))
    last, bucket, changed = now, now, true
  end
  local oldest, r, u = unpack_event(redis.call('LINDEX', events, 0))
  while now - oldest >= WINDOW do
    redis.call('LPOP', events)
    used_requests, used_units, changed = used_requests - r, used_units - u, true
    oldest, r, u = unpack_event(redis.call('LINDEX', events, 0))
  end
else
  last = now - WINDOW
end

if give_back > 0 and youngest and (stamp == 0 or now - stamp < WINDOW) then
  -- The first entry that ends at or after the stamp contains it. Only entries of the same moment may follow.
  local found = 0
  for index, event in ipairs(redis.call('LRANGE', events, 0, -1)) do
    local moment, r, u = unpack_event(event)
    if moment >= stamp then
      if found == 0 then found = moment end
      if give_back == 0 or (stamp > 0 and moment > found) then break end
      local given = math.min(give_back, u)
      redis.call('LSET', events, index - 1, pack(moment, r, u - given))
      give_back, used_units, changed = give_back - given, used_units - given, true
    end
  end
end

local verdict = 0
if request_limit > 0 and requests > 0 and used_requests + requests > request_limit then
  verdict = 1
elseif unit_limit > 0 and units > 0 and used_units + units > unit_limit then
  verdict = 2
elseif requests > 0 or units > 0 then
  used_requests, used_units = used_requests + requests, used_units + units
  if youngest and now - bucket < QUANTUM and redis.call('LLEN', events) >= EXACT_ENTRIES then
    local _, r, u = unpack_event(redis.call('LINDEX', events, -1))
    redis.call('LSET', events, -1, pack(now, r + requests, u + units))
  else
    redis.call('RPUSH', events, pack(now, requests, units))
    bucket = now
  end
  last, youngest, changed = now, true, true
end

if changed and youngest then
  redis.call('HSET', sums, 'r', used_requests, 'u', used_units, 'b', string.format('%.0f', bucket))
  -- Kept until the last admission has left the window. A refused attempt does not keep the keys longer.
  local keep = KEEP_MILLISECONDS - math.floor((now - last) / 1000)
  redis.call('PEXPIRE', events, keep)
  redis.call('PEXPIRE', sums, keep)
end

return {verdict, used_requests, last, now}
