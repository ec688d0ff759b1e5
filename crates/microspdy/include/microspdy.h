/* SPDY/3 and SPDY/3.1 servers in C: the interface of libmicrospdy, provided by
   Tandem.

   SPDX-License-Identifier: MIT OR Apache-2.0

   A program calls SPDY_init, starts daemons with SPDY_start_daemon, and then
   runs a loop of SPDY_get_fdset, select and SPDY_run. The library calls the
   program back from SPDY_run and SPDY_stop_daemon only. It starts no threads,
   and it changes no signal handlers.

   Conventions:

   - Functions with an int result return SPDY_YES, SPDY_NO or SPDY_INPUT_ERROR.
     SPDY_INPUT_ERROR reports a NULL argument, or a handle that is destroyed or
     of another type. Functions with a pointer result return NULL instead.
   - The struct types are incomplete: programs hold handles to them. A handle is
     a number in the form of a pointer, and must not be followed. The use of a
     handle after its destruction has no effect.
   - Texts are copied by the functions that take them.
   - Every function may be called inside a callback. SPDY_run does nothing
     there, and SPDY_stop_daemon takes effect when SPDY_run returns.
   - Different threads may use the library at the same time. Callbacks run in
     the thread that called SPDY_run.

   The functions of this library that libmicrospdy lacks are in
   microspdy_push.h. */

#ifndef SPDY_MICROSPDY_H
#define SPDY_MICROSPDY_H

/* Programs may define MHD_PLATFORM_H to include these headers themselves. */
#ifndef MHD_PLATFORM_H
#include <stdarg.h>
#include <stdint.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>
#endif

#include <stdbool.h>
#ifdef __has_include
#if __has_include(<zlib.h>)
#include <zlib.h>
#endif
#endif

#ifndef _MHD_EXTERN
#define _MHD_EXTERN extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Results of functions. */
#define SPDY_YES 1
#define SPDY_NO 0
#define SPDY_INPUT_ERROR -1

/* The version in control frames. It is that of SPDY/3 and of SPDY/3.1. */
#define SPDY_VERSION 3

/* The largest block of a body callback, in bytes. */
#define SPDY_MAX_SUPPORTED_FRAME_SIZE 8192

/* HTTP status codes. */
#define SPDY_HTTP_CONTINUE 100
#define SPDY_HTTP_SWITCHING_PROTOCOLS 101
#define SPDY_HTTP_PROCESSING 102
#define SPDY_HTTP_OK 200
#define SPDY_HTTP_CREATED 201
#define SPDY_HTTP_ACCEPTED 202
#define SPDY_HTTP_NON_AUTHORITATIVE_INFORMATION 203
#define SPDY_HTTP_NO_CONTENT 204
#define SPDY_HTTP_RESET_CONTENT 205
#define SPDY_HTTP_PARTIAL_CONTENT 206
#define SPDY_HTTP_MULTI_STATUS 207
#define SPDY_HTTP_MULTIPLE_CHOICES 300
#define SPDY_HTTP_MOVED_PERMANENTLY 301
#define SPDY_HTTP_FOUND 302
#define SPDY_HTTP_SEE_OTHER 303
#define SPDY_HTTP_NOT_MODIFIED 304
#define SPDY_HTTP_USE_PROXY 305
#define SPDY_HTTP_SWITCH_PROXY 306
#define SPDY_HTTP_TEMPORARY_REDIRECT 307
#define SPDY_HTTP_BAD_REQUEST 400
#define SPDY_HTTP_UNAUTHORIZED 401
#define SPDY_HTTP_PAYMENT_REQUIRED 402
#define SPDY_HTTP_FORBIDDEN 403
#define SPDY_HTTP_NOT_FOUND 404
#define SPDY_HTTP_METHOD_NOT_ALLOWED 405
#define SPDY_HTTP_METHOD_NOT_ACCEPTABLE 406
#define SPDY_HTTP_PROXY_AUTHENTICATION_REQUIRED 407
#define SPDY_HTTP_REQUEST_TIMEOUT 408
#define SPDY_HTTP_CONFLICT 409
#define SPDY_HTTP_GONE 410
#define SPDY_HTTP_LENGTH_REQUIRED 411
#define SPDY_HTTP_PRECONDITION_FAILED 412
#define SPDY_HTTP_REQUEST_ENTITY_TOO_LARGE 413
#define SPDY_HTTP_REQUEST_URI_TOO_LONG 414
#define SPDY_HTTP_UNSUPPORTED_MEDIA_TYPE 415
#define SPDY_HTTP_REQUESTED_RANGE_NOT_SATISFIABLE 416
#define SPDY_HTTP_EXPECTATION_FAILED 417
#define SPDY_HTTP_UNPROCESSABLE_ENTITY 422
#define SPDY_HTTP_LOCKED 423
#define SPDY_HTTP_FAILED_DEPENDENCY 424
#define SPDY_HTTP_UNORDERED_COLLECTION 425
#define SPDY_HTTP_UPGRADE_REQUIRED 426
#define SPDY_HTTP_NO_RESPONSE 444
#define SPDY_HTTP_RETRY_WITH 449
#define SPDY_HTTP_BLOCKED_BY_WINDOWS_PARENTAL_CONTROLS 450
#define SPDY_HTTP_UNAVAILABLE_FOR_LEGAL_REASONS 451
#define SPDY_HTTP_INTERNAL_SERVER_ERROR 500
#define SPDY_HTTP_NOT_IMPLEMENTED 501
#define SPDY_HTTP_BAD_GATEWAY 502
#define SPDY_HTTP_SERVICE_UNAVAILABLE 503
#define SPDY_HTTP_GATEWAY_TIMEOUT 504
#define SPDY_HTTP_HTTP_VERSION_NOT_SUPPORTED 505
#define SPDY_HTTP_VARIANT_ALSO_NEGOTIATES 506
#define SPDY_HTTP_INSUFFICIENT_STORAGE 507
#define SPDY_HTTP_BANDWIDTH_LIMIT_EXCEEDED 509
#define SPDY_HTTP_NOT_EXTENDED 510

/* Names of HTTP header fields. Names are lower-case in SPDY. */
#define SPDY_HTTP_HEADER_ACCEPT "accept"
#define SPDY_HTTP_HEADER_ACCEPT_CHARSET "accept-charset"
#define SPDY_HTTP_HEADER_ACCEPT_ENCODING "accept-encoding"
#define SPDY_HTTP_HEADER_ACCEPT_LANGUAGE "accept-language"
#define SPDY_HTTP_HEADER_ACCEPT_RANGES "accept-ranges"
#define SPDY_HTTP_HEADER_AGE "age"
#define SPDY_HTTP_HEADER_ALLOW "allow"
#define SPDY_HTTP_HEADER_AUTHORIZATION "authorization"
#define SPDY_HTTP_HEADER_CACHE_CONTROL "cache-control"
#define SPDY_HTTP_HEADER_CONNECTION "connection"
#define SPDY_HTTP_HEADER_CONTENT_ENCODING "content-encoding"
#define SPDY_HTTP_HEADER_CONTENT_LANGUAGE "content-language"
#define SPDY_HTTP_HEADER_CONTENT_LENGTH "content-length"
#define SPDY_HTTP_HEADER_CONTENT_LOCATION "content-location"
#define SPDY_HTTP_HEADER_CONTENT_MD5 "content-md5"
#define SPDY_HTTP_HEADER_CONTENT_RANGE "content-range"
#define SPDY_HTTP_HEADER_CONTENT_TYPE "content-type"
#define SPDY_HTTP_HEADER_COOKIE "cookie"
#define SPDY_HTTP_HEADER_DATE "date"
#define SPDY_HTTP_HEADER_ETAG "etag"
#define SPDY_HTTP_HEADER_EXPECT "expect"
#define SPDY_HTTP_HEADER_EXPIRES "expires"
#define SPDY_HTTP_HEADER_FROM "from"
#define SPDY_HTTP_HEADER_HOST "host"
#define SPDY_HTTP_HEADER_IF_MATCH "if-match"
#define SPDY_HTTP_HEADER_IF_MODIFIED_SINCE "if-modified-since"
#define SPDY_HTTP_HEADER_IF_NONE_MATCH "if-none-match"
#define SPDY_HTTP_HEADER_IF_RANGE "if-range"
#define SPDY_HTTP_HEADER_IF_UNMODIFIED_SINCE "if-unmodified-since"
#define SPDY_HTTP_HEADER_KEEP_ALIVE "keep-alive"
#define SPDY_HTTP_HEADER_LAST_MODIFIED "last-modified"
#define SPDY_HTTP_HEADER_LOCATION "location"
#define SPDY_HTTP_HEADER_MAX_FORWARDS "max-forwards"
#define SPDY_HTTP_HEADER_PRAGMA "pragma"
#define SPDY_HTTP_HEADER_PROXY_AUTHENTICATE "proxy-authenticate"
#define SPDY_HTTP_HEADER_PROXY_AUTHORIZATION "proxy-authorization"
#define SPDY_HTTP_HEADER_PROXY_CONNECTION "proxy-connection"
#define SPDY_HTTP_HEADER_RANGE "range"
#define SPDY_HTTP_HEADER_REFERER "referer"
#define SPDY_HTTP_HEADER_RETRY_AFTER "retry-after"
#define SPDY_HTTP_HEADER_SERVER "server"
#define SPDY_HTTP_HEADER_SET_COOKIE "set-cookie"
#define SPDY_HTTP_HEADER_SET_COOKIE2 "set-cookie2"
#define SPDY_HTTP_HEADER_TE "te"
#define SPDY_HTTP_HEADER_TRAILER "trailer"
#define SPDY_HTTP_HEADER_TRANSFER_ENCODING "transfer-encoding"
#define SPDY_HTTP_HEADER_UPGRADE "upgrade"
#define SPDY_HTTP_HEADER_USER_AGENT "user-agent"
#define SPDY_HTTP_HEADER_VARY "vary"
#define SPDY_HTTP_HEADER_VIA "via"
#define SPDY_HTTP_HEADER_WARNING "warning"
#define SPDY_HTTP_HEADER_WWW_AUTHENTICATE "www-authenticate"

/* HTTP versions. */
#define SPDY_HTTP_VERSION_1_0 "HTTP/1.0"
#define SPDY_HTTP_VERSION_1_1 "HTTP/1.1"

/* HTTP methods. */
#define SPDY_HTTP_METHOD_CONNECT "CONNECT"
#define SPDY_HTTP_METHOD_DELETE "DELETE"
#define SPDY_HTTP_METHOD_GET "GET"
#define SPDY_HTTP_METHOD_HEAD "HEAD"
#define SPDY_HTTP_METHOD_OPTIONS "OPTIONS"
#define SPDY_HTTP_METHOD_POST "POST"
#define SPDY_HTTP_METHOD_PUT "PUT"
#define SPDY_HTTP_METHOD_TRACE "TRACE"

/* Encodings of POST bodies. */
#define SPDY_HTTP_POST_ENCODING_FORM_URLENCODED \
  "application/x-www-form-urlencoded"
#define SPDY_HTTP_POST_ENCODING_MULTIPART_FORMDATA "multipart/form-data"

/* A listener with its sessions. */
struct SPDY_Daemon;

/* A connection of a client. Its handle is valid from SPDY_NewSessionCallback
   to the end of the session, that is, until SPDY_SessionClosedCallback and the
   callbacks of unfinished responses have returned. */
struct SPDY_Session;

/* A request. Its handle, texts and headers are valid until SPDY_destroy_request,
   or until the request ends without a response. A request ends in this way with
   its session: after SPDY_SessionClosedCallback and the callbacks of unfinished
   responses, the library destroys it. See also SPDYX_RequestEndedCallback. */
struct SPDY_Request;

/* A response, which may answer any number of requests. */
struct SPDY_Response;

/* A list of header fields. A name may have several values. */
struct SPDY_NameValue;

/* A set of SETTINGS entries. */
struct SPDY_Settings;

/* The transport of a daemon. */
enum SPDY_IO_SUBSYSTEM
{
  SPDY_IO_SUBSYSTEM_NONE = 0,
  /* TLS. The name is historical: the default build uses rustls. */
  SPDY_IO_SUBSYSTEM_OPENSSL = 1,
  /* Plain TCP. */
  SPDY_IO_SUBSYSTEM_RAW = 2
};

/* Options of SPDY_start_daemon. Each is followed by its value. */
enum SPDY_DAEMON_OPTION
{
  /* The end of the list. */
  SPDY_DAEMON_OPTION_END = 0,
  /* unsigned int: the seconds after which a silent session is closed. 0, the
     default, means never. */
  SPDY_DAEMON_OPTION_SESSION_TIMEOUT = 1,
  /* struct sockaddr *: the address to listen on, IPv4 or IPv6. The port
     argument is then ignored. Port 0 lets the system choose a port. */
  SPDY_DAEMON_OPTION_SOCK_ADDR = 2,
  /* enum SPDY_DAEMON_FLAG: flags, combined with |. */
  SPDY_DAEMON_OPTION_FLAGS = 4,
  /* enum SPDY_IO_SUBSYSTEM: TLS, the default, or plain TCP. */
  SPDY_DAEMON_OPTION_IO_SUBSYSTEM = 8,
  /* uint32_t: the frames that a session may send in one SPDY_run. 0 means the
     default, 10. */
  SPDY_DAEMON_OPTION_MAX_NUM_FRAMES = 16
};

/* Flags of a daemon. */
enum SPDY_DAEMON_FLAG
{
  SPDY_DAEMON_FLAG_NO = 0,
  /* Listens on IPv6 only. SPDY_start_daemon fails with an IPv4 address. */
  SPDY_DAEMON_FLAG_ONLY_IPV6 = 1,
  /* Sends small frames at once. This library always does so. */
  SPDY_DAEMON_FLAG_NO_DELAY = 2
};

/* Numbers of SETTINGS entries. */
enum SPDY_SETTINGS
{
  /* kB/s. */
  SPDY_SETTINGS_UPLOAD_BANDWIDTH = 1,
  /* kB/s. */
  SPDY_SETTINGS_DOWNLOAD_BANDWIDTH = 2,
  /* Milliseconds. */
  SPDY_SETTINGS_ROUND_TRIP_TIME = 3,
  /* Streams that the receiver of the frame may have open. */
  SPDY_SETTINGS_MAX_CONCURRENT_STREAMS = 4,
  /* Packets. */
  SPDY_SETTINGS_CURRENT_CWND = 5,
  /* Percent. */
  SPDY_SETTINGS_DOWNLOAD_RETRANS_RATE = 6,
  /* Bytes that the receiver of the frame may send on a new stream. */
  SPDY_SETTINGS_INITIAL_WINDOW_SIZE = 7,
  /* Certificates. */
  SPDY_SETTINGS_CLIENT_CERTIFICATE_VECTOR_SIZE = 8
};

/* Flags of a SETTINGS entry. */
enum SPDY_FLAG_SETTINGS
{
  /* The client should store the value. */
  SPDY_FLAG_SETTINGS_PERSIST_VALUE = 1,
  /* The value was stored. Only clients send this flag. */
  SPDY_FLAG_SETTINGS_PERSISTED = 2
};

/* Flags of a SETTINGS frame. */
enum SPDY_FLAG_SETTINGS_FRAME
{
  /* The client should forget the values that it has stored. */
  SPDY_FLAG_SETTINGS_CLEAR_SETTINGS = 1
};

/* The result of a response. */
enum SPDY_RESPONSE_RESULT
{
  /* The last byte was written to the socket. */
  SPDY_RESPONSE_RESULT_SUCCESS = 0,
  /* The session ended first. A part may have been sent. */
  SPDY_RESPONSE_RESULT_SESSION_CLOSED = 1,
  /* The stream ended first, for example by RST_STREAM. A part may have been
     sent. */
  SPDY_RESPONSE_RESULT_STREAM_CLOSED = 2
};

/* Receives an internal fault, or a misuse that no return value can report: a
   second SPDY_init, or SPDY_deinit without SPDY_init. After a fault inside a
   daemon, that daemon should be stopped. */
typedef void (*SPDY_PanicCallback) (void *cls, const char *file,
                                    unsigned int line, const char *reason);

/* A client has connected. A TLS handshake has not begun. */
typedef void (*SPDY_NewSessionCallback) (void *cls,
                                         struct SPDY_Session *session);

/* A session has ended: by_client is SPDY_YES if the client closed the
   connection. The callbacks of unfinished responses follow. */
typedef void (*SPDY_SessionClosedCallback) (void *cls,
                                            struct SPDY_Session *session,
                                            int by_client);

/* Visits a name with its values. SPDY_YES continues. */
typedef int (*SPDY_NameValueIterator) (void *cls, const char *name,
                                       const char *const *value,
                                       int num_values);

/* A request has come. The texts and headers belong to the request. headers has
   the fields other than method, path, version, host and scheme. If more is true,
   SPDY_NewDataCallback is called for the body. The program has to destroy the
   request after its response. Incomplete requests are answered with 400, and are
   not reported. */
typedef void (*SPDY_NewRequestCallback) (void *cls,
                                         struct SPDY_Request *request,
                                         uint8_t priority, const char *method,
                                         const char *path, const char *version,
                                         const char *host, const char *scheme,
                                         struct SPDY_NameValue *headers,
                                         bool more);

/* A part of a request body has come; size may be 0. more is false for the last
   part. SPDY_NO: the program wants no more parts of this body. */
typedef int (*SPDY_NewDataCallback) (void *cls, struct SPDY_Request *request,
                                     const void *buf, size_t size, bool more);

/* Writes a block of a response body, of at most max bytes, into buffer, and
   returns its length. *more is false on entry, and set to true if blocks follow.
   With *more, 0 means that nothing is ready: the callback is called again in the
   next SPDY_run. A negative result ends the stream with RST_STREAM. */
typedef ssize_t (*SPDY_ResponseCallback) (void *cls, void *buffer, size_t max,
                                          bool *more);

/* A queued response has ended. streamopened is true if the stream is still
   open, because the response was queued without closestream. */
typedef void (*SPDY_ResponseResultCallback) (void *cls,
                                             struct SPDY_Response *response,
                                             struct SPDY_Request *request,
                                             enum SPDY_RESPONSE_RESULT status,
                                             bool streamopened);

/* A ping was answered after the time *rtt. */
typedef void (*SPDY_PingCallback) (void *cls, struct SPDY_Session *session,
                                   struct timeval *rtt);

/* Visits a SETTINGS entry. SPDY_YES continues. */
typedef int (*SPDY_SettingsIterator) (void *cls, enum SPDY_SETTINGS id,
                                      int32_t value, uint8_t flags);

/* The type of a callback for received SETTINGS. No function takes it; the
   library follows the settings of clients itself. */
typedef void (*SPDY_SettingsReceivedCallback) (struct SPDY_Session *session,
                                               struct SPDY_Settings *settings,
                                               uint8_t flags, ...);

/* Library */

/* Initializes the library. The macro without arguments prepares TLS;
   (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW) prepares plain TCP. Returns SPDY_YES.
   SPDY_deinit must come before the next SPDY_init. */
_MHD_EXTERN int (SPDY_init) (enum SPDY_IO_SUBSYSTEM io_subsystem, ...);
#define SPDY_init() SPDY_init (SPDY_IO_SUBSYSTEM_OPENSSL)

/* Ends the use of the library. Daemons must be stopped before. */
_MHD_EXTERN void SPDY_deinit (void);

/* Sets the callback for faults. The default, which NULL restores, prints the
   fault to stderr and aborts. */
_MHD_EXTERN void SPDY_set_panic_func (SPDY_PanicCallback cb, void *cls);

/* Daemons */

/* Starts a daemon on a port of all addresses. certfile and keyfile are PEM
   files, which plain TCP does not need. Each callback may be NULL. cls is passed
   to the callbacks. The options end with SPDY_DAEMON_OPTION_END. Returns NULL if
   the address is in use, a file cannot be read, or an option is unknown, illegal
   or given twice. */
_MHD_EXTERN struct SPDY_Daemon *
SPDY_start_daemon (uint16_t port, const char *certfile, const char *keyfile,
                   SPDY_NewSessionCallback nscb,
                   SPDY_SessionClosedCallback sccb,
                   SPDY_NewRequestCallback nrcb, SPDY_NewDataCallback npdcb,
                   void *cls, ...);

/* Closes all sessions with GOAWAY, and stops the daemon. If another thread is
   inside SPDY_run, this waits for it: the caller must hold no lock that a
   callback takes. No callback of the daemon follows. A call inside a callback
   does not wait: the daemon closes at the end of the SPDY_run under way. The
   first call destroys the handle: a call of another thread during it returns at
   once, and callbacks may follow until the first call returns. */
_MHD_EXTERN void SPDY_stop_daemon (struct SPDY_Daemon *daemon);

/* Adds the descriptors of a daemon to sets for select. Returns the largest one.
   A descriptor is in the write set only while there is work to do for it.
   Connections with descriptors of FD_SETSIZE or more are refused, so all fit.
   Without a free descriptor, the listener is left out for 100 ms, or until a
   session ends; SPDY_get_timeout knows of this time. */
_MHD_EXTERN int SPDY_get_fdset (struct SPDY_Daemon *daemon,
                                fd_set *read_fd_set, fd_set *write_fd_set,
                                fd_set *except_fd_set);

/* Stores the longest time that select may wait, in milliseconds. Returns
   SPDY_NO if nothing limits it. */
_MHD_EXTERN int SPDY_get_timeout (struct SPDY_Daemon *daemon,
                                  unsigned long long *timeout);

/* Accepts, reads and writes as far as that is possible without waiting, and
   calls the callbacks. */
_MHD_EXTERN void SPDY_run (struct SPDY_Daemon *daemon);

/* Sessions */

/* Closes a session. The next SPDY_run sends GOAWAY, ends the connection and
   calls the callbacks. */
_MHD_EXTERN void SPDY_close_session (struct SPDY_Session *session);

/* Stores a pointer of the program with a session. */
_MHD_EXTERN void SPDY_set_cls_to_session (struct SPDY_Session *session,
                                          void *cls);

/* Returns the stored pointer, or NULL. */
_MHD_EXTERN void *SPDY_get_cls_from_session (struct SPDY_Session *session);

/* Stores a pointer to the client's address, which is valid as long as the
   session, and returns the length of the address. Returns 0 for an unknown
   session. */
_MHD_EXTERN socklen_t SPDY_get_remote_addr (struct SPDY_Session *session,
                                            struct sockaddr **addr);

/* Sends a ping. The callback may be NULL. Returns SPDY_NO if the session is
   closing, is in its TLS handshake, or has 64 unanswered pings. */
_MHD_EXTERN int SPDY_send_ping (struct SPDY_Session *session,
                                SPDY_PingCallback rttcb, void *rttcb_cls);

/* Header fields */

/* Creates an empty list. */
_MHD_EXTERN struct SPDY_NameValue *SPDY_name_value_create (void);

/* Adds a value to a name. A name must not be empty or have capitals; this is
   SPDY_INPUT_ERROR. Returns SPDY_NO if the name has that value. An empty value
   is replaced by the next value of its name. */
_MHD_EXTERN int SPDY_name_value_add (struct SPDY_NameValue *container,
                                     const char *name, const char *value);

/* Returns the values of a name, and stores their number. The array is valid
   until the list is changed or destroyed. NULL: the name is not in the list. */
_MHD_EXTERN const char *const *
SPDY_name_value_lookup (struct SPDY_NameValue *container, const char *name,
                        int *num_values);

/* Visits the names in order, and returns how many were visited. With a NULL
   iterator, the function counts the names. */
_MHD_EXTERN int SPDY_name_value_iterate (struct SPDY_NameValue *container,
                                         SPDY_NameValueIterator iterator,
                                         void *iterator_cls);

/* Destroys a list. The headers of a request belong to the request. */
_MHD_EXTERN void SPDY_name_value_destroy (struct SPDY_NameValue *container);

/* Requests */

/* Returns the session of a request; NULL if it has ended. */
_MHD_EXTERN struct SPDY_Session *
SPDY_get_session_for_request (const struct SPDY_Request *request);

/* Stores a pointer of the program with a request. */
_MHD_EXTERN void SPDY_set_cls_to_request (struct SPDY_Request *request,
                                          void *cls);

/* Returns the stored pointer, or NULL. */
_MHD_EXTERN void *SPDY_get_cls_from_request (struct SPDY_Request *request);

/* Destroys a request and its headers. A response that was queued before is
   still sent. */
_MHD_EXTERN void SPDY_destroy_request (struct SPDY_Request *request);

/* Responses */

/* Builds a response. statustext and headers may be NULL. data is copied; a size
   of 0 makes a response without a body. Returns NULL if the response cannot be
   sent: the status is outside 100 to 999, a text has a line break, or the fields
   exceed 60 KiB. */
_MHD_EXTERN struct SPDY_Response *
SPDY_build_response (int status, const char *statustext, const char *version,
                     struct SPDY_NameValue *headers, const void *data,
                     size_t size);

/* Builds a response with a body from a callback, in blocks of block_size bytes.
   0 means SPDY_MAX_SUPPORTED_FRAME_SIZE, and a larger size is an error. */
_MHD_EXTERN struct SPDY_Response *
SPDY_build_response_with_callback (int status, const char *statustext,
                                   const char *version,
                                   struct SPDY_NameValue *headers,
                                   SPDY_ResponseCallback rcb, void *rcb_cls,
                                   uint32_t block_size);

/* Queues a response for a request. closestream ends the stream after it.
   Otherwise the stream stays open: the body of the next response continues this
   body, and its head is not sent. With consider_priority, the response is sent
   in the order of the request's priority; otherwise it has the middle priority,
   3. The callback may be NULL. Returns SPDY_NO if the stream or the session can
   send no more. */
_MHD_EXTERN int
SPDY_queue_response (struct SPDY_Request *request,
                     struct SPDY_Response *response, bool closestream,
                     bool consider_priority, SPDY_ResponseResultCallback rrcb,
                     void *rrcb_cls);

/* Destroys a response. Responses that are queued are still sent. */
_MHD_EXTERN void SPDY_destroy_response (struct SPDY_Response *response);

/* Settings */

/* Creates an empty set. The result is const for compatibility. */
_MHD_EXTERN const struct SPDY_Settings *SPDY_settings_create (void);

/* Adds or replaces an entry. Returns SPDY_NO if the number, the flags or the
   value is illegal; values are not negative. */
_MHD_EXTERN int SPDY_settings_add (struct SPDY_Settings *container,
                                   enum SPDY_SETTINGS id,
                                   enum SPDY_FLAG_SETTINGS flags,
                                   int32_t value);

/* Stores the flags and the value of an entry. Returns SPDY_NO if the set lacks
   it. */
_MHD_EXTERN int SPDY_settings_lookup (const struct SPDY_Settings *container,
                                      enum SPDY_SETTINGS id,
                                      enum SPDY_FLAG_SETTINGS *flags,
                                      int32_t *value);

/* Visits the entries in the order of their numbers, and returns how many were
   visited. With a NULL iterator, the function counts the entries. */
_MHD_EXTERN int SPDY_settings_iterate (const struct SPDY_Settings *container,
                                       SPDY_SettingsIterator iterator,
                                       void *iterator_cls);

/* Destroys a set. */
_MHD_EXTERN void SPDY_settings_destroy (struct SPDY_Settings *container);

/* Sends a set to the client, and follows its limits for streams and windows.
   The variadic arguments end with 0; no option is defined. Returns SPDY_NO if
   the session is closing, or is in its TLS handshake. */
_MHD_EXTERN int SPDY_send_settings (struct SPDY_Session *session,
                                    struct SPDY_Settings *settings,
                                    enum SPDY_FLAG_SETTINGS_FRAME flags, ...);

#ifdef __cplusplus
}
#endif

#endif
