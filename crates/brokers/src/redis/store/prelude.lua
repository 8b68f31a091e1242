-- Beginning of each script. A script executes a batch of operations.
--
-- ARGV[1] is a random number below 2^53 - 1 for new epochs. For each operation, ARGV has its name and arguments, and KEYS
-- its keys. The answer has the number of connected replicas, the first error of a publication or an empty string, the
-- time in milliseconds, and for each operation a table that begins with a status.

local call, format, find, match, sub = redis.call, string.format, string.find, string.match, string.sub
local floor, min, max = math.floor, math.min, math.max
local OK, REJECTED, UNKNOWN = 0, -1, -2
-- Largest integer that Lua and JSON represent exactly.
local POSITION_MAX = 9007199254740991
-- Least number of sequences that are skipped when another server than that of the last write has the data.
local JUMP = @JUMP@
-- A slot of a Redis Cluster may be about to move. Then access to a missing key is an error: a script touches each key that it
-- may write before the first write.
local IS_CLUSTER = @IS_CLUSTER@

local key_index, argument_index = 0, 1
local function next_key()
  key_index = key_index + 1
  return KEYS[key_index]
end
local function next_text()
  argument_index = argument_index + 1
  return ARGV[argument_index]
end
local function next_number()
  argument_index = argument_index + 1
  return tonumber(ARGV[argument_index])
end

local function next_texts(count)
  local first = argument_index + 1
  argument_index = argument_index + count
  return unpack(ARGV, first, argument_index)
end

-- Returns the value of a field, if it matches.
local function field(text, name, value)
  -- Without a pattern, it is found fast.
  local _, last = find(text, name .. ':', 1, true)
  return last and match(text, '^(' .. value .. ')', last + 1)
end

local replication = call('INFO', 'replication')
local replicas = tonumber(field(replication, 'connected_slaves', '%d+') or 0)
-- The server that writes: it has another replication id after a failover, and after a restart.
local server = field(replication, '@ID_FIELD@', '%x+')
-- Without this id, a failover cannot be distinguished from another server with the same data.
local detects_failover = server ~= nil
if not detects_failover then
  server = field(call('INFO', 'server'), 'run_id', '%x+') or '0'
end
server = sub(server, 1, 16)

local time = call('TIME')
-- Milliseconds since 1970.
local now = time[1] * 1000 + floor(time[2] / 1000)
local now_text = format('%.0f', now)

-- Returns the first sequence by another server than that of the last write: the time in microseconds, since a second
-- failover may lose this jump, and must not repeat its sequences.
local microseconds = JUMP > 1 and time[1] * 1000000 + time[2] or 0
local function behind_jump(top) return max(top + JUMP, microseconds) end

local epochs = 0
local function new_epoch()
  epochs = epochs + 1
  return (tonumber(ARGV[1]) + epochs) % POSITION_MAX + 1
end

-- Whether the operation has written. Redis checks before the first write of a script whether writes are possible.
local has_written = false
local function write(...)
  local answer = call(...)
  has_written = true
  return answer
end

-- A write that cannot be announced stays: followers find it when they compare positions.
local publish_error = ''
local PUBLISH = IS_CLUSTER and 'SPUBLISH' or 'PUBLISH'
local function publish(channel, message)
  local answer = redis.pcall(PUBLISH, channel, message)
  if type(answer) == 'table' and answer.err and publish_error == '' then
    publish_error = answer.err
  end
end
