#!/usr/bin/env bash
# One Apache Kafka broker without ZooKeeper (KRaft), from the jars of Maven Central. Needs Java 17 or later, and mvn for
# the first time. See common.sh.
set -euo pipefail
name=kafka
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
version=${KAFKA_VERSION:-4.2.0}
port=${BROKER_PORT:-19092}
controller_port=${KAFKA_CONTROLLER_PORT:-$((port + 1))}
run=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/kafka-$port}
jars=$cache/kafka-$version

fetch() {
  have java || missing "no java (apt-get install openjdk-17-jre-headless)"
  [[ -f $jars/complete ]] && return
  have mvn || missing "no mvn to fetch the broker with (apt-get install maven)"
  mkdir -p "$jars"
  # The broker and its own dependencies. They contain no log writer; slf4j-simple writes the log to stderr.
  cat >"$jars/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev</groupId><artifactId>brokers</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
POM
  timeout 300 mvn --quiet --batch-mode --file "$jars/pom.xml" -Dmaven.repo.local="$cache/maven" \
    org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$jars" >"$jars/fetch.log" 2>&1 ||
    missing "mvn could not fetch the jars: $(grep -m1 ERROR "$jars/fetch.log" | cut -c1-200)"
  rm -f "$jars"/slf4j-reload4j-*.jar
  touch "$jars/complete"
}

java_options() {
  # No files of the JVM outside the run directory, and no compiler that pays off only after minutes.
  printf '%s\n' -XX:-UsePerfData -XX:+UseSerialGC "-XX:TieredStopAtLevel=${KAFKA_TIER:-1}" \
    "-Djava.io.tmpdir=$run" -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
    -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info -cp "$jars/*"
}

settings() {
  cat <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$run/data
num.partitions=${KAFKA_PARTITIONS:-1}
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=8388608
P
}

launch() {
  mapfile -t options < <(java_options)
  settings >"$run/server.properties"
  if [[ ! -d $run/data ]]; then
    local cluster
    cluster=$(head --bytes 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d =)
    timeout "$ready_seconds" java -Xmx128m "${options[@]}" kafka.tools.StorageTool format \
      "--cluster-id=$cluster" -c "$run/server.properties" >"$run/format.log" 2>&1 ||
      { cat "$run/format.log" >&2; failed "its storage could not be formatted"; }
  fi
  : >"$run/log"
  start java -Xms64m "-Xmx${KAFKA_HEAP:-256m}" "${options[@]}" kafka.Kafka "$run/server.properties"
}

answers() { listens && grep -q 'Kafka Server started' "$run/log"; }

main "$@"
