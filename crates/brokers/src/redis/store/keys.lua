-- Keys. For a topic:
--   `keymeta`  string `epoch top bytes count forgotten due server jump…`, see `open`
--   `keys`     hash, key to `version expiry value`; an expiry of 0 is none. Its name is the channel, too.
--   `version`  sorted set of keys, and of keys removed a short time ago, by the version of the last change
--   `expiry`   sorted set of keys with an expiry
--   `removed`  sorted set of keys removed a short time ago, by time
-- An operation has the name of `keys` and that of the topic; the other names follow from them.
-- For a partition: `due`, a sorted set of topics by the time at which the sweep has to look at them.

local NEVER = POSITION_MAX
-- Time in milliseconds for which removals are remembered.
local REMOVALS_KEPT = @REMOVALS_KEPT@
-- Time in milliseconds after which a topic without keys is forgotten, with its epoch.
local EMPTY_KEPT = 86400000
local JUMPS_KEPT = 8
local PAGE = 1000
-- Maximum changes in an answer: pages of all keys follow more of them.
local CHANGES_MAX = 4000

-- Returns the beginning of the names of a topic's partition.
local function base_of(keys, name) return sub(keys, 1, -#name - 6) end

local function named(topic, part) return topic.base .. part .. topic.name end

-- Reads the state of a topic. `forgotten` is a version below which removals or jumps are forgotten; `due` is the time of
-- the next expiry of a key or a removal; `jumps` are the sequences before and behind each jump. `tail` is the part of the
-- state that most writes leave.
local function open(keys, name)
  local base = base_of(keys, name)
  local meta_key = base .. 'keymeta:' .. name
  if IS_CLUSTER then
    call('EXISTS', keys, base .. 'version:' .. name, base .. 'expiry:' .. name, base .. 'removed:' .. name, base .. 'due')
  end
  local meta = call('GET', meta_key)
  local epoch, top, bytes, count, tail, forgotten, due, writer, jumps
  if meta then
    epoch, top, bytes, count, tail, forgotten, due, writer, jumps =
      match(meta, '^(%d+) (%d+) (%d+) (%d+)( (%d+) (%d+) (%x+)(.*))$')
  end
  local is_new = not meta or (writer ~= server and not detects_failover)
  if is_new then
    epoch, top, bytes, count, forgotten, due, jumps = format('%.0f', new_epoch()), '0', 0, 0, 0, NEVER, ''
  else
    bytes, count, forgotten, due = tonumber(bytes), tonumber(count), tonumber(forgotten), tonumber(due)
  end
  return {
    base = base, name = ':' .. name, meta = meta_key, keys = keys, epoch = epoch, top = tonumber(top), top_text = top,
    announced = top, bytes = bytes, count = count, old_count = count, forgotten = forgotten, due = due, old_due = due,
    old_forgotten = forgotten, writer = writer, tail = tail, jumps = jumps, was_missing = not meta, is_new = is_new,
    must_jump = not is_new and writer ~= server, skipped = '0', changes = {}, change_of = nil, has_forgotten = false,
  }
end

-- Returns the sequences before and behind each jump.
local function jumps_of(topic)
  local jumps = {}
  for jump in string.gmatch(topic.jumps, '%d+') do jumps[#jumps + 1] = tonumber(jump) end
  return jumps
end

local function jump(topic)
  local jumps = jumps_of(topic)
  jumps[#jumps + 1], topic.top = topic.top, behind_jump(topic.top)
  jumps[#jumps + 1] = topic.top
  if #jumps > 2 * JUMPS_KEPT then
    table.remove(jumps, 1)
    topic.forgotten = max(topic.forgotten, table.remove(jumps, 1))
  end
  topic.jumps, topic.must_jump, topic.skipped = '', false, '1'
  for _, sequence in ipairs(jumps) do topic.jumps = topic.jumps .. format(' %.0f', sequence) end
end

-- Returns the text of the version.
local function next_version(topic)
  if topic.is_new then
    write('DEL', topic.keys, named(topic, 'version'), named(topic, 'expiry'), named(topic, 'removed'))
    -- A version names no other value of a topic that was lost.
    topic.is_new, topic.top = false, behind_jump(0)
  elseif topic.must_jump then
    jump(topic)
  else
    topic.top = topic.top + 1
  end
  local text = format('%.0f', topic.top)
  topic.top_text = text
  return text
end

-- Returns the texts of the version and the expiry, and the start of the value, of a stored key.
local function stored_start(stored)
  return match(stored, '^(%d+) (%d+) ()')
end

-- Notes a change to announce. Only the last one of each key is announced.
local function note_change(topic, key, change)
  local changes, change_of = topic.changes, topic.change_of
  local at = #changes + 1
  changes[at] = change
  if change_of then
    if change_of[key] then changes[change_of[key]] = '' end
    change_of[key] = at
  end
end

-- Announces the changes since the last announcement: `epoch top prev skipped`, of which the last is 1 behind a jump, and
-- for each change `version expiry key-bytes value-bytes` with the key and the value; a removal has no `value-bytes`, but a `-`.
local function announce(topic)
  local top = topic.top_text
  if top == topic.announced then return end
  local head = topic.epoch .. ' ' .. top .. ' ' .. topic.announced .. ' ' .. topic.skipped .. ' '
  local changes = topic.changes
  publish(topic.keys, head .. (changes[2] and table.concat(changes) or changes[1]))
  topic.announced, topic.changes, topic.skipped = top, {}, '0'
  if topic.change_of then topic.change_of = {} end
end

local function remove(topic, key, stored)
  local version = next_version(topic)
  local _, expiry, start = stored_start(stored)
  write('HDEL', topic.keys, key)
  if expiry ~= '0' then call('ZREM', named(topic, 'expiry'), key) end
  call('ZADD', named(topic, 'version'), version, key)
  call('ZADD', named(topic, 'removed'), now_text, key)
  topic.bytes = topic.bytes - #key - (#stored - start + 1)
  topic.count = topic.count - 1
  topic.due = min(topic.due, now + REMOVALS_KEPT)
  note_change(topic, key, version .. ' 0 ' .. #key .. ' - ' .. key)
  return version
end

local function set(topic, key, value, ttl, stored, old_expiry, start)
  local version = next_version(topic)
  -- The time is rounded down.
  local expiry, expiry_text = now + 1 + ttl, '0'
  if ttl > 0 then expiry_text = format('%.0f', expiry) end
  write('HSET', topic.keys, key, version .. ' ' .. expiry_text .. ' ' .. value)
  call('ZADD', named(topic, 'version'), version, key)
  if stored then
    topic.bytes = topic.bytes + #value - (#stored - start + 1)
    if ttl == 0 and old_expiry ~= '0' then call('ZREM', named(topic, 'expiry'), key) end
  else
    call('ZREM', named(topic, 'removed'), key)
    topic.bytes, topic.count = topic.bytes + #key + #value, topic.count + 1
  end
  if ttl > 0 then
    call('ZADD', named(topic, 'expiry'), expiry_text, key)
    topic.due = min(topic.due, expiry)
  end
  note_change(topic, key, version .. ' ' .. expiry_text .. ' ' .. #key .. ' ' .. #value .. ' ' .. key .. value)
  return version
end

local function first_score(name)
  return tonumber(call('ZRANGE', name, 0, 0, 'WITHSCORES')[2] or NEVER)
end

-- Removes expired keys, at most a page of them, and forgets old removals. Returns the number of removed keys.
local function expire(topic)
  if now < topic.due then return 0 end
  local expiry, removed, version = named(topic, 'expiry'), named(topic, 'removed'), named(topic, 'version')
  local expired = call('ZRANGEBYSCORE', expiry, '-inf', now_text, 'LIMIT', 0, PAGE)
  for _, key in ipairs(expired) do
    local stored = call('HGET', topic.keys, key)
    if stored then remove(topic, key, stored) else write('ZREM', expiry, key) end
  end
  local old = format('%.0f', now - REMOVALS_KEPT)
  for _, key in ipairs(call('ZRANGEBYSCORE', removed, '-inf', old, 'LIMIT', 0, PAGE)) do
    topic.forgotten = max(topic.forgotten, tonumber(call('ZSCORE', version, key) or 0))
    write('ZREM', version, key)
    call('ZREM', removed, key)
    topic.has_forgotten = true
  end
  topic.due = min(first_score(expiry), first_score(removed) + REMOVALS_KEPT)
  announce(topic)
  return #expired
end

-- Announces and stores the state, if it has changed.
local function close(topic)
  if topic.top_text == topic.announced and topic.due == topic.old_due and not topic.has_forgotten then
    return
  end
  announce(topic)
  local tail = topic.tail
  if topic.due ~= topic.old_due or topic.forgotten ~= topic.old_forgotten or topic.writer ~= server then
    local writer = topic.must_jump and topic.writer or server
    tail = format(' %.0f %.0f %s%s', topic.forgotten, topic.due, writer, topic.jumps)
  end
  local meta = topic.epoch .. ' ' .. topic.top_text .. format(' %.0f %.0f', topic.bytes, topic.count) .. tail
  if topic.count > 0 then
    write('SET', topic.meta, meta)
    if topic.old_count == 0 then
      call('PERSIST', named(topic, 'version'))
      call('PERSIST', named(topic, 'removed'))
    end
  else
    write('SET', topic.meta, meta, 'PX', EMPTY_KEPT)
    call('PEXPIRE', named(topic, 'version'), EMPTY_KEPT)
    call('PEXPIRE', named(topic, 'removed'), EMPTY_KEPT)
  end
  if topic.due ~= topic.old_due then
    local due, name = topic.base .. 'due', sub(topic.name, 2)
    if topic.due < NEVER then
      call('ZADD', due, format('%.0f', topic.due), name)
    else
      call('ZREM', due, name)
    end
  end
end

local operations = {}

-- Returns the outcome that a condition demands, if it does not hold. An outcome is a letter and perhaps a version.
local function violation(topic, options, version)
  local condition = options.condition
  if condition == 'new' then
    if version then return 'e' .. version end
  elseif condition ~= '' then
    if not version then return 'm' end
    local is_other = condition ~= 'exists' and version ~= options.version
    if is_other or (condition == 'at' and options.epoch ~= topic.epoch) then return 'o' .. version end
  end
end

local function apply(topic, key, value, options, limits)
  local stored = call('HGET', topic.keys, key)
  local version, expiry, start
  if stored then
    version, expiry, start = stored_start(stored)
    -- An expired key has no value, even before its removal.
    if expiry ~= '0' and tonumber(expiry) <= now then version = nil end
  end
  local outcome = options.condition ~= '' and violation(topic, options, version)
  if outcome then return outcome end
  if not options.is_set then
    if not version then return 'u' end
    return 'c' .. remove(topic, key, stored)
  end
  if not stored and topic.count + 1 > limits.keys then return 'k' end
  local size = stored and #value - (#stored - start + 1) or #key + #value
  if topic.bytes + size > limits.bytes then return 'b' end
  return 'c' .. set(topic, key, value, options.ttl, stored, expiry, start)
end

local function apply_once(topic, key, value, options, limits, once)
  local first = call('GET', once)
  if first then return 'r' .. first end
  local outcome = apply(topic, key, value, options, limits)
  write('SET', once, sub(outcome, 1, 1) == 'c' and sub(outcome, 2) or '', 'PX', options.once_window)
  return outcome
end

-- Options and limits of this batch by their texts.
local options_of, limits_of = {}, {}

-- An empty text is a set without a time to live.
options_of[''] = {is_set = true, ttl = 0, condition = ''}

local function parse_options(text)
  local kind, ttl, condition, version, epoch, once_window = match(text, '^(%l+) (%d+) (%l*) (%d+) (%d+) (%d*)$')
  local options = {is_set = kind == 'set', ttl = tonumber(ttl), condition = condition, version = version, epoch = epoch}
  if once_window ~= '' then options.once_window = once_window end
  options_of[text] = options
  return options
end

local function parse_limits(text)
  local keys, bytes, count = match(text, '^(%d+) (%d+) (%d+)$')
  local limits = {keys = tonumber(keys), bytes = tonumber(bytes), count = tonumber(count)}
  limits_of[text] = limits
  return limits
end

-- Removes expired keys until there is space for the writes: space of expired keys is available. They have an announcement
-- of their own.
local function make_space(topic, first, count, limits)
  local size = 0
  for at = first, first + 3 * count - 1, 3 do size = size + #ARGV[at] + #ARGV[at + 1] end
  repeat
    local expired = expire(topic)
    local has_space = topic.count + count <= limits.keys and topic.bytes + size <= limits.bytes
  until expired < PAGE or has_space
end

-- Returns `epoch sequence prev` and the outcomes.
function operations.write()
  local keys, name, limits = next_key(), next_texts(2)
  limits = limits_of[limits] or parse_limits(limits)
  local count, first = limits.count, argument_index + 1
  argument_index = argument_index + 3 * count
  local onces = {}
  for at = first + 2, argument_index, 3 do
    local options = options_of[ARGV[at]] or parse_options(ARGV[at])
    if options.once_window then onces[at] = next_key() end
  end
  local topic = open(keys, name)
  if behind_jump(topic.top) + count + topic.count > POSITION_MAX then
    return {REJECTED, 'the topic has no further positions'}
  end
  if now >= topic.due then make_space(topic, first, count, limits) end
  local before, outcomes = topic.top_text, ''
  if count > 1 then topic.change_of = {} end
  for at = first, argument_index, 3 do
    local key, value, options = ARGV[at], ARGV[at + 1], options_of[ARGV[at + 2]]
    local once = onces[at + 2]
    local outcome
    if once then
      outcome = apply_once(topic, key, value, options, limits, once)
    else
      outcome = apply(topic, key, value, options, limits)
    end
    outcomes = outcomes .. ' ' .. outcome
  end
  close(topic)
  if topic.is_new then return '0 0 0' .. outcomes end
  return topic.epoch .. ' ' .. topic.top_text .. ' ' .. before .. outcomes
end

function operations.read()
  local keys, name, cursor_server, cursor, limit = next_key(), next_texts(4)
  local meta = call('GET', base_of(keys, name) .. 'keymeta:' .. name)
  if not meta then return {1} end
  -- Another server has another order of keys.
  if cursor_server ~= '' and cursor_server ~= server then
    return {REJECTED, 'the pages are of another server; read the first page again'}
  end
  local page = call('HSCAN', keys, cursor, 'COUNT', limit)
  return {OK, match(meta, '^%d+ %d+'), now, server, page[1], page[2]}
end

-- Whether all changes behind a position are known.
local function is_known(topic, epoch, after)
  if after == 0 then return true end
  if epoch ~= topic.epoch or after > topic.top or after < topic.forgotten then return false end
  local jumps = jumps_of(topic)
  for at = 1, #jumps, 2 do
    if after > jumps[at] and after < jumps[at + 1] then return false end
  end
  return true
end

function operations.changes()
  local keys, name, epoch, after = next_key(), next_texts(3)
  local topic = open(keys, name)
  after = tonumber(after)
  if topic.was_missing then return {after == 0 and 2 or 1} end
  if topic.is_new or not is_known(topic, epoch, after) then return {1} end
  local limit = CHANGES_MAX + 1
  local changed = call('ZRANGEBYSCORE', named(topic, 'version'), format('(%.0f', after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  if #changed / 2 == limit then return {1} end
  local fields = {}
  for at = 1, #changed, 2 do fields[#fields + 1] = changed[at] end
  local values = #fields > 0 and call('HMGET', keys, unpack(fields)) or {}
  local jumps = jumps_of(topic)
  local last_jump = jumps[#jumps - 1]
  local skipped = last_jump and after > 0 and last_jump >= after and 1 or 0
  return {OK, topic.epoch .. ' ' .. topic.top_text, now, skipped, changed, values}
end

function operations.clear()
  local keys, name = next_key(), next_text()
  local base = base_of(keys, name)
  write('DEL', base .. 'keymeta:' .. name, keys, base .. 'version:' .. name, base .. 'expiry:' .. name,
    base .. 'removed:' .. name)
  call('ZREM', base .. 'due', name)
  return {OK}
end

-- Removes expired keys of one partition's topics. Returns whether more is due.
local function sweep_partition(due, prefix)
  local names = call('ZRANGEBYSCORE', due, '-inf', format('%.0f', now), 'LIMIT', 0, 10)
  local more = #names == 10
  for _, name in ipairs(names) do
    local topic = open(prefix .. 'keys:' .. name, name)
    if topic.is_new then
      write('ZREM', due, name)
    else
      more = expire(topic) == PAGE or more
      -- The partition's entry may be older than the topic's.
      topic.old_due = -1
      close(topic)
    end
  end
  return more
end

-- Removes expired keys, if this node holds the lease. Returns whether it does, and whether more is due.
function operations.sweep()
  local lease, partitions = next_key(), {}
  local holder, lease_time = next_text(), next_text()
  for at = 1, next_number() do partitions[at] = {due = next_key(), prefix = next_text()} end
  local current = call('GET', lease)
  if current and current ~= holder then return {OK, 0, 0} end
  write('SET', lease, holder, 'PX', lease_time)
  local more = false
  for _, partition in ipairs(partitions) do
    more = sweep_partition(partition.due, partition.prefix) or more
  end
  return {OK, 1, more and 1 or 0}
end
