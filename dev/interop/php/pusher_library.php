<?php
// The unmodified Pusher library for PHP against a server: php pusher_library.php SOURCES BASE
//
// SOURCES is a copy of pusher-http-php, or a folder in which Composer has installed it (composer.json). The dependencies of a copy
// are packages of Debian: php-cli, php-curl, php-guzzlehttp-guzzle and php-psr-log. BASE is a server such as
// ws://127.0.0.1:8080 with this app:
//
//   id = "3", key = "278d425bdf160c739803", secret = "7ad3773142a6692b25b8", subscription_counts = true
//
// Each check prints `ok NAME` or `FAIL NAME: why`.

declare(strict_types=1);

[, $sources, $base] = $argv;
const KEY = '278d425bdf160c739803';
const SECRET = '7ad3773142a6692b25b8';

if (is_file("$sources/vendor/autoload.php")) {
    require "$sources/vendor/autoload.php";
} else {
    require '/usr/share/php/GuzzleHttp/autoload.php';
    require '/usr/share/php/Psr/Log/autoload.php';
    spl_autoload_register(function (string $class) use ($sources): void {
        $file = $sources . '/src/' . substr($class, strlen('Pusher\\')) . '.php';
        if (str_starts_with($class, 'Pusher\\') && is_file($file)) require $file;
    });
}

$url = parse_url($base);
$library = fn (string $secret = SECRET, array $more = []) => new Pusher\Pusher(KEY, $secret, '3',
    ['host' => $url['host'], 'port' => $url['port'], 'scheme' => 'http', 'useTLS' => false] + $more);

function expect(mixed $actual, mixed $wanted, string $what): void
{
    $actual = json_encode($actual);
    $wanted = json_encode($wanted);
    if ($actual !== $wanted) throw new Exception("$what is $actual, not $wanted");
}

/** The status of a rejected request. */
function status(callable $request): int
{
    try {
        $request();
    } catch (Pusher\ApiErrorException $error) {
        return $error->getCode();
    }
    return 200;
}

$checks = [
    'triggers' => function () use ($library) {
        expect($library()->trigger('php-a', 'e', ['text' => 'ü']), new stdClass(), 'one channel');
        expect($library()->trigger(['php-a', 'php-b'], 'e', 'x', ['socket_id' => '1.2']), new stdClass(), 'two channels');
        $info = $library()->trigger('php-a', 'e', 'x', ['info' => 'subscription_count']);
        expect($info->channels['php-a']->subscription_count, 0, 'the number of subscribers');
    },
    'batches' => function () use ($library) {
        $event = fn (string $channel) => ['channel' => $channel, 'name' => 'e', 'data' => 'x'];
        expect($library()->triggerBatch([$event('php-a'), $event('php-b')]), new stdClass(), 'a batch');
        expect($library()->triggerBatchAsync([$event('php-a')])->wait(), new stdClass(), 'a batch later');
    },
    'channels' => function () use ($library) {
        expect($library()->getChannels(['filter_by_prefix' => 'php-'])->channels, [], 'channels');
        expect($library()->getChannelInfo('php-a', ['info' => 'subscription_count'])->occupied, false, 'a channel');
        expect($library()->getPresenceUsers('presence-php')->users, [], 'users');
        expect(status(fn () => $library()->getPresenceUsers('php-a')), 400, 'users of a public channel');
    },
    'users' => function () use ($library) {
        expect($library()->sendToUser('anna', 'e', 'x'), new stdClass(), 'an event for a user');
        expect($library()->terminateUserConnections('anna'), new stdClass(), 'the end of a user');
    },
    'rejections' => function () use ($library) {
        expect(status(fn () => $library('other')->trigger('php-a', 'e', 'x')), 401, 'another secret');
        expect(status(fn () => $library()->trigger('php-a', 'e', str_repeat('x', 20_000))), 413, 'large data');
    },
    'encrypted channels' => function () use ($library) {
        $options = ['encryption_master_key_base64' => base64_encode(str_repeat('k', 32))];
        expect($library(SECRET, $options)->trigger('private-encrypted-php', 'e', 'x'), new stdClass(), 'an event');
    },
    'webhooks' => function () use ($library) {
        $body = '{"time_ms":1,"events":[{"name":"channel_occupied","channel":"a"}]}';
        $headers = ['X-Pusher-Key' => KEY, 'X-Pusher-Signature' => hash_hmac('sha256', $body, SECRET)];
        expect($library()->webhook($headers, $body)->get_events()[0]->channel, 'a', 'the channel of a webhook');
    },
];
$failed = false;
foreach ($checks as $name => $check) {
    try {
        $check();
        echo "ok $name\n";
    } catch (Throwable $error) {
        $failed = true;
        echo "FAIL $name: {$error->getMessage()}\n";
    }
}
exit($failed ? 1 : 0);
