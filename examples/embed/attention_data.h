/* A small attention over a quantized cache, made up by the program: random codebooks and codes, and
 * the result of a plain loop over them. C and C++. */
#ifndef ATTENTION_DATA_H
#define ATTENTION_DATA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
  kBatch = 2,
  kQueryHeads = 4,
  kKvHeads = 2,
  kHeadDim = 64,
  kTokens = 300,
  kVector = 4,
  kEntries = 256,
  kRowWords = kHeadDim / kVector / 4, /* a code is a byte */
  kQueries = kBatch * kQueryHeads,
  kOutputs = kQueries * kHeadDim,
  kCodeWords = kBatch * kKvHeads * kTokens * kRowWords,
  kCodebook = kEntries * kVector
};

static const char kConfig[] =
    "{\"op\": \"attention_decode\", \"dtype\": \"f16\","
    " \"shape\": {\"batch\": 2, \"query_heads\": 4, \"kv_heads\": 2, \"head_dim\": 64, \"tokens\": "
    "300},"
    " \"keys\": {\"scope\": \"tensor\", \"vector_size\": 4, \"index_bits\": 8},"
    " \"values\": {\"scope\": \"tensor\", \"vector_size\": 4, \"index_bits\": 8}}";

typedef struct AttentionData {
  uint16_t query[kOutputs];                                /* [batch][query_heads][head_dim] */
  uint16_t key_book[kCodebook], value_book[kCodebook];     /* [entry][vector] */
  uint32_t key_codes[kCodeWords], value_codes[kCodeWords]; /* [batch][kv_head][token][row words] */
  int32_t lengths[kBatch];
} AttentionData;

static inline uint32_t next_random(uint32_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

/* The bits of an f16 of either sign with a magnitude from 1/4 to 1. */
static inline uint16_t random_f16(uint32_t* state) {
  const uint32_t bits = next_random(state);
  const uint32_t exponent = 13 + (bits >> 20) % 2;
  return (uint16_t)((bits & 0x83ff) | exponent << 10);
}

static inline float float_of_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const float magnitude = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                          : exponent == 0 ? ldexpf((float)mantissa, -24)
                                          : ldexpf((float)(1024 + mantissa), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static inline void make_data(AttentionData* data, int tokens) {
  uint32_t state = 12345;
  for (int i = 0; i < kOutputs; ++i) data->query[i] = random_f16(&state);
  for (int i = 0; i < kCodebook; ++i) data->key_book[i] = random_f16(&state);
  for (int i = 0; i < kCodebook; ++i) data->value_book[i] = random_f16(&state);
  for (int i = 0; i < kCodeWords; ++i) data->key_codes[i] = next_random(&state);
  for (int i = 0; i < kCodeWords; ++i) data->value_codes[i] = next_random(&state);
  data->lengths[0] = tokens;
  data->lengths[1] = tokens / 2 + 1;
}

/* Element `channel` of a cached row. */
static inline double cached(const uint32_t* codes, const uint16_t* book, int sequence, int kv_head,
                            int token, int channel) {
  const int number = channel / kVector;
  const int row = ((sequence * kKvHeads + kv_head) * kTokens + token) * kRowWords;
  const uint32_t code = codes[row + number / 4] >> (number % 4 * 8) & 255;
  return (double)float_of_f16(book[code * kVector + (uint32_t)(channel % kVector)]);
}

/* softmax(q k^T / sqrt(head_dim)) v, in double. */
static inline void plain_attention(const AttentionData* data, double* out) {
  for (int query = 0; query < kQueries; ++query) {
    const int sequence = query / kQueryHeads;
    const int kv_head = query % kQueryHeads / (kQueryHeads / kKvHeads);
    double* result = out + query * kHeadDim;
    double weights = 0;
    memset(result, 0, kHeadDim * sizeof(double));
    for (int token = 0; token < data->lengths[sequence]; ++token) {
      double score = 0;
      for (int c = 0; c < kHeadDim; ++c) {
        score += (double)float_of_f16(data->query[query * kHeadDim + c]) *
                 cached(data->key_codes, data->key_book, sequence, kv_head, token, c);
      }
      /* Scores are far from where exp overflows: no maximum is taken off. */
      const double weight = exp(score / sqrt((double)kHeadDim));
      weights += weight;
      for (int c = 0; c < kHeadDim; ++c) {
        result[c] +=
            weight * cached(data->value_codes, data->value_book, sequence, kv_head, token, c);
      }
    }
    for (int c = 0; c < kHeadDim; ++c) result[c] /= weights;
  }
}

/* Norm of the difference over the norm of the plain result; not a number where one is in `out`. */
static inline double relative_error(const double* plain, const uint16_t* out) {
  double difference = 0;
  double norm = 0;
  for (int i = 0; i < kOutputs; ++i) {
    const double off = (double)float_of_f16(out[i]) - plain[i];
    difference += off * off;
    norm += plain[i] * plain[i];
  }
  return sqrt(difference / norm);
}

#endif
