"""The Lua scripts that run inside Redis, each one atomic. All keys of a call have the same hash tag.

Used by `store` alone. Works with Redis 6 and later, and with Valkey.
"""

# KEYS: lease, token, wanted. ARGV: holder, lease milliseconds, whether to lead, whether the topic is wanted here,
# milliseconds that this counts. Returns holder, token, the server's time in microseconds, whether another wants it.
# A new token is greater than every one before, also when Redis has lost its memory: it is never below the time.
TICK = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder = redis.call('HGET', KEYS[1], 'holder')
local token = redis.call('HGET', KEYS[1], 'token')
if ARGV[4] == '1' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[5]) end
if holder == ARGV[1] then
  if ARGV[3] == '1' then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  else
    redis.call('DEL', KEYS[1])
    holder, token = '', '0'
  end
elseif not holder and ARGV[3] == '1' then
  local last = tonumber(redis.call('GET', KEYS[2]) or '0')
  token = string.format('%.0f', math.max(last + 1, now))
  holder = ARGV[1]
  redis.call('SET', KEYS[2], token)
  redis.call('HSET', KEYS[1], 'holder', holder, 'token', token)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {holder or '', token or '0', string.format('%.0f', now), redis.call('EXISTS', KEYS[3])}
"""

# KEYS: lease, stream. ARGV: token, entries kept, then entries. Returns 0, and writes nothing, when another leads.
PUBLISH = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
for index = 3, #ARGV do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'entry', ARGV[index])
end
return 1
"""

# KEYS: block, claim. ARGV: demand, holder, claim milliseconds. Returns the block; or 1: it is for the caller to fetch;
# or 0: another is fetching it.
CLAIM = """
local kept = redis.call('GETRANGE', KEYS[1], 0, 0)
if kept ~= '' and kept >= ARGV[1] then return redis.call('GET', KEYS[1]) end
local claim = redis.call('GET', KEYS[2])
if claim and string.sub(claim, 1, 1) >= ARGV[1] and string.sub(claim, 2) ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[2], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return 1
"""

# KEYS: block, claim, stream. ARGV: the block or nothing, milliseconds it is kept, holder, entries kept, notice.
STORE = """
if ARGV[1] ~= '' and redis.call('GETRANGE', KEYS[1], 0, 0) <= string.sub(ARGV[1], 1, 1) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local claim = redis.call('GET', KEYS[2])
if claim and string.sub(claim, 2) == ARGV[3] then redis.call('DEL', KEYS[2]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'entry', ARGV[5])
return 1
"""
