/* The floor: what the kernel alone asks for a fan-out, with nothing decided and nothing kept.
 *
 *   floor send|writev|join
 *
 * An epoll server on a free loopback port (printed first, as JSON). It upgrades any WebSocket request, answers joins and
 * sends each event a publisher pushes on `server:<group>` to every app joined to `app:<group>`: as one send() per event
 * and app (send), as one gathered write of all events of one read per app (writev), or joined into one buffer per group
 * and read (join). Frames are taken as they come: whole, small, one per read or several; this is no WebSocket server.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_FD = 65536, MAX_GROUPS = 1024, MAX_BATCH = 256, BUFFER = 1 << 20, PATIENCE_MS = 200 };

static struct conn { int group, app, upgraded, used; char *buffer; } conns[MAX_FD];
static struct group { int *apps, count, room; } groups[MAX_GROUPS];
static char out[BUFFER];

static void die(const char *what) { perror(what); exit(1); }

/* SHA-1 of the handshake is not the floor's business: every client here is ours and does not look at the answer. */
static const char UPGRADE[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                              "Sec-WebSocket-Accept: floor\r\n\r\n";

static int frame(char *to, const char *text, int length) {
  int head = length < 126 ? 2 : 4;
  to[0] = (char)0x81;
  if (head == 2) to[1] = (char)length; else { to[1] = 126; to[2] = (char)(length >> 8); to[3] = (char)length; }
  memcpy(to + head, text, length);
  return head + length;
}

/* Whether a client that is full takes more within a moment; one that does not is cut. */
static int takes_more(int fd) {
  struct pollfd full = {.fd = fd, .events = POLLOUT};
  if (errno == EAGAIN && poll(&full, 1, PATIENCE_MS) == 1) return 1;
  shutdown(fd, SHUT_RDWR);
  return 0;
}

static void send_all(int fd, const char *data, int length) {
  while (length > 0) {
    ssize_t n = send(fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && !takes_more(fd)) return;
    if (n > 0) data += n, length -= n;
  }
}

static void send_batch(int fd, const struct iovec *events, int count) {
  struct msghdr batch = {.msg_iov = (struct iovec *)events, .msg_iovlen = count};
  ssize_t n = sendmsg(fd, &batch, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && !takes_more(fd)) return;
  for (int e = 0; e < count; e++) { /* what one call did not take */
    ssize_t length = events[e].iov_len, taken = n < 0 ? 0 : n < length ? n : length;
    if (taken < length) send_all(fd, (char *)events[e].iov_base + taken, (int)(length - taken));
    if (n > 0) n -= taken;
  }
}

static void join_app(int fd, int number) {
  struct group *g = &groups[number];
  if (g->count == g->room) g->apps = realloc(g->apps, sizeof(int) * (g->room = g->room ? g->room * 2 : 16));
  g->apps[g->count++] = fd;
}

static void fan_out(const char *mode, struct group *g, struct iovec *events, int count) {
  if (!strcmp(mode, "send")) {
    for (int e = 0; e < count; e++)
      for (int a = 0; a < g->count; a++) send_all(g->apps[a], events[e].iov_base, (int)events[e].iov_len);
  } else if (!strcmp(mode, "writev")) {
    for (int a = 0; a < g->count; a++) send_batch(g->apps[a], events, count);
  } else {
    static char joined[BUFFER];
    int length = 0;
    for (int e = 0; e < count; e++) memcpy(joined + length, events[e].iov_base, events[e].iov_len), length += (int)events[e].iov_len;
    for (int a = 0; a < g->count; a++) send_all(g->apps[a], joined, length);
  }
}

/* One client frame at `data`; its whole length, or 0 when it is not all there. */
static int client_frame(unsigned char *data, int have, char **text, int *length) {
  if (have < 6) return 0;
  int head = 2, size = data[1] & 127;
  if (size == 126) { if (have < 8) return 0; size = data[2] << 8 | data[3]; head = 4; }
  if (have < head + 4 + size) return 0;
  unsigned char *key = data + head, *body = key + 4;
  for (int i = 0; i < size; i++) body[i] ^= key[i & 3];
  *text = (char *)body, *length = size;
  return head + 4 + size;
}

/* A text like ["1","2","server:7","session_event",{"event":…}]: the quoted strings of the first four slots. */
static int slot(const char *text, int length, int number, const char **start) {
  const char *end = text + length, *p = text;
  for (int i = 0; p < end; i++) {
    p = memchr(p, '"', end - p);
    if (!p) return -1;
    const char *close = memchr(p + 1, '"', end - p - 1);
    if (!close) return -1;
    if (i == number) { *start = p + 1; return (int)(close - p - 1); }
    p = close + 1;
  }
  return -1;
}

static void serve(const char *mode, int fd, struct conn *c) {
  struct iovec events[MAX_BATCH];
  int done = 0, count = 0, written = 0;
  static char answers[BUFFER];
  int answered = 0;
  while (done < c->used) {
    char *text; int length;
    int taken = client_frame((unsigned char *)c->buffer + done, c->used - done, &text, &length);
    if (!taken) break;
    done += taken;
    const char *jr = "", *ref = "", *topic = "", *name = "";
    int jr_n = slot(text, length, 0, &jr), ref_n = slot(text, length, 1, &ref), topic_n = slot(text, length, 2, &topic), name_n = slot(text, length, 3, &name);
    if (jr_n < 0 || ref_n < 0 || topic_n < 0 || name_n < 0) continue;
    int number = atoi(memchr(topic, ':', topic_n) ? (char *)memchr(topic, ':', topic_n) + 1 : "0") % MAX_GROUPS;
    char reply[512];
    int n = snprintf(reply, sizeof reply, "[\"%.*s\",\"%.*s\",\"%.*s\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]", jr_n, jr, ref_n, ref, topic_n, topic);
    answered += frame(answers + answered, reply, n);
    if (name_n == 8 && !memcmp(name, "phx_join", 8)) {
      if (topic_n > 4 && !memcmp(topic, "app:", 4)) join_app(fd, number);
      c->group = number;
    } else if (count < MAX_BATCH) {
      const char *payload = memchr(name, '{', length - (name - text));
      char push[65536];
      int m = snprintf(push, sizeof push, "[\"1\",null,\"app:%d\",\"session_event\",%.*s]", number, (int)(length - (payload - text) - 1), payload);
      events[count].iov_base = out + written;
      events[count].iov_len = frame(out + written, push, m);
      written += (int)events[count++].iov_len;
    }
  }
  if (count) fan_out(mode, &groups[c->group], events, count);
  if (answered) send_all(fd, answers, answered);
  memmove(c->buffer, c->buffer + done, c->used -= done);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "send";
  int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) die("listen");
  getsockname(listener, (struct sockaddr *)&address, &size);
  printf("{\"port\": %d}\n", ntohs(address.sin_port));
  fflush(stdout);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[512];
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
  for (;;) {
    int n = epoll_wait(epoll, ready, 512, -1);
    for (int i = 0; i < n; i++) {
      int fd = ready[i].data.fd;
      if (fd == listener) {
        int peer = accept(listener, NULL, NULL);
        if (peer < 0 || peer >= MAX_FD) continue;
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conns[peer] = (struct conn){.buffer = malloc(BUFFER / 8)};
        struct epoll_event added = {.events = EPOLLIN, .data.fd = peer};
        epoll_ctl(epoll, EPOLL_CTL_ADD, peer, &added);
        continue;
      }
      struct conn *c = &conns[fd];
      ssize_t got = recv(fd, c->buffer + c->used, BUFFER / 8 - c->used, MSG_DONTWAIT);
      if (got <= 0) {
        close(fd); /* apps of a closed group keep a dead fd: a run ends with all of them */
        free(c->buffer);
        c->buffer = NULL;
        continue;
      }
      c->used += (int)got;
      if (!c->upgraded) {
        char *end = memmem(c->buffer, c->used, "\r\n\r\n", 4);
        if (!end) continue;
        int head = (int)(end + 4 - c->buffer);
        send_all(fd, UPGRADE, sizeof UPGRADE - 1);
        c->upgraded = 1;
        memmove(c->buffer, c->buffer + head, c->used -= head);
      }
      if (c->used) serve(mode, fd, c);
    }
  }
}
